/* A causal convolution over tokens; included once per instruction set, after elementwise.inc.h.
 *
 * A result is the sum over the taps, the oldest first, and then the bias.
 */
#include "recurrent/convolution.h"

/* `count` channels from `first` on, CONVOLVED_CHANNELS at most. */
static void convolve(const Convolution *c, int64_t first, int64_t count) {
    enum { SIZE = CONVOLVED_CHANNELS };
    float weights[MAX_TAPS][SIZE], inputs[MAX_TAPS][SIZE], ones[SIZE], sums[SIZE];
    const int64_t taps = c->taps, older = taps - 1;
    float *recent = c->recent + first * older;
    for (int64_t i = 0; i < count; i++) {
        for (int64_t tap = 0; tap < taps; tap++)
            weights[tap][i] = c->weight[(first + i) * taps + tap];
        for (int64_t tap = 0; tap < older; tap++) inputs[tap][i] = recent[i * older + tap];
        ones[i] = 1;
    }
    /* The input of token t is in row (t + older) % taps, where that of token t - taps was. */
    for (int64_t token = 0; token < c->tokens; token++) {
        memcpy(inputs[(token + older) % taps], c->x + token * c->x_step + first,
               (size_t)count * sizeof(float));
        for (int64_t i = 0; i < count; i++) sums[i] = inputs[token % taps][i] * weights[0][i];
        for (int64_t tap = 1; tap < taps; tap++) {
            const float *input = inputs[(token + tap) % taps];
            for (int64_t i = 0; i < count; i++) sums[i] += input[i] * weights[tap][i];
        }
        if (c->bias)
            for (int64_t i = 0; i < count; i++) sums[i] += c->bias[first + i];
        if (c->silu) activate(SILU, sums, ones, count);
        memcpy(c->out + token * c->out_step + first, sums, (size_t)count * sizeof(float));
    }
    for (int64_t tap = 0; tap < older; tap++)
        for (int64_t i = 0; i < count; i++)
            recent[i * older + tap] = inputs[(c->tokens + tap) % taps][i];
}

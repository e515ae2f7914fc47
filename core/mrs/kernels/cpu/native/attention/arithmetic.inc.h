/* The arithmetic of attention; included once per instruction set.
 *
 * A token's result has the same bits however it is computed: alone or in a chunk, by one thread or
 * several. So both kernels, for one token and for many, execute the same operations in this order:
 *
 *   score   = sum of (q[d] * scale) * k[d] from the first d to the last, by fma
 *   then for each step of STEP_KEYS keys, the first at a position that is a multiple of it:
 *     largest = max(previous largest, scores);  factor = exp(previous largest - largest)
 *     weight  = exp(score - largest); 0 for keys that the token does not attend to
 *     total   = total * factor + sum of weights; the order is that of `sum_of_weights`
 *     out[d]  = out[d] * factor + sum of weight * v[d] from the first key to the last, by fma
 *   out[d] * (1 / total)
 *
 * Steps are as in M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax" (2018).
 */
#include "attention/attention.h"
#include "elementwise.inc.h"

#define MIN_SCORE (-1e30f) /* below any score, but finite; masked scores are -INFINITY */
#define SUM_PARTS 16       /* of a sum of weights */

INLINE Floats load_cached(const Type type, const void *cache, int64_t offset) {
    switch (type) {
    case TYPE_F32: return lanes_load_floats((const float *)cache + offset);
    case TYPE_F16: return lanes_load_f16((const uint8_t *)((const uint16_t *)cache + offset));
    default: return lanes_load_bf16((const uint16_t *)cache + offset);
    }
}

#define MAX_F16 65504.0f

/* Values as f16, of `count`, a multiple of LANES; those out of its range become its largest. */
static void to_f16(const float *x, int64_t count, uint16_t *out) {
    for (int64_t i = 0; i < count; i += LANES) {
        float values[LANES];
#pragma omp simd
        for (int j = 0; j < LANES; j++) {
            const float v = x[i + j] > MAX_F16 ? MAX_F16 : x[i + j];
            values[j] = v < -MAX_F16 ? -MAX_F16 : v;
        }
        lanes_store_f16(out + i, lanes_load_floats(values));
    }
}

static inline float capped(float score, float softcap) {
    return score < MIN_SCORE ? score : softcap * tanh_of(score / softcap);
}

static inline float weight_of(float score, float largest) {
    const float weight = exp_of(score - largest);
    return score < MIN_SCORE ? 0 : weight;
}

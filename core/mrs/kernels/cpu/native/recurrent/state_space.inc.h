/* A selective state space; included once per instruction set, after elementwise.inc.h.
 *
 * Tokens are computed one after another, so that a token's result does not depend on the chunk in
 * which it is fed. For each token and each row S of the state, with its value x:
 *
 *   S = exp(decay * time) * S + time * x * b;  out = S c + skip * x
 *
 * where the decay is that of the head, or of each value of the row.
 *
 * LANES rows share the loads of b and c, and each has one vector of partial sums of S c. Rows that
 * are left, and those of a size that is no multiple of LANES, are computed one by one.
 */
#include "recurrent/state_space.h"

/* LANES rows of whole vectors: updates them and writes S c. */
INLINE void update_rows(float *state, const float *b, const float *c, float factor,
                        const float *added, int64_t size, float *out) {
    Floats sums[LANES];
#pragma GCC unroll 16
    for (int row = 0; row < LANES; row++) sums[row] = lanes_zero();
    for (int64_t n = 0; n < size; n += LANES) {
        const Floats b_lanes = lanes_load_floats(b + n), c_lanes = lanes_load_floats(c + n);
#pragma GCC unroll 16
        for (int row = 0; row < LANES; row++) {
            float *place = state + row * size + n;
            Floats values = lanes_mul(lanes_load_floats(place), lanes_float(factor));
            values = lanes_fma(lanes_float(added[row]), b_lanes, values);
            lanes_store(place, values);
            sums[row] = lanes_fma(values, c_lanes, sums[row]);
        }
    }
    lanes_transpose(sums);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) sums[i] = lanes_add_floats(sums[i], sums[i + half]);
    lanes_store(out, sums[0]);
}

/* One row: updates it and returns S c. */
INLINE float update_row(float *state, const float *b, const float *c, float factor, float added,
                        int64_t size) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t n = 0; n < size; n++) {
        state[n] = state[n] * factor + added * b[n];
        sum += state[n] * c[n];
    }
    return sum;
}

/* The same for a row whose values have decays of their own. */
INLINE float update_decayed_row(float *state, const float *b, const float *c, const float *decay,
                                float time, float added, int64_t size) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t n = 0; n < size; n++) {
        state[n] = state[n] * exp_of(decay[n] * time) + added * b[n];
        sum += state[n] * c[n];
    }
    return sum;
}

/* `rows` rows of one head's state from `first` on, STATE_ROWS at most. */
static void state_space(const StateSpace *s, int64_t head, int64_t first, int64_t rows) {
    const int64_t group = head / (s->heads / s->groups), size = s->state_dim;
    const int64_t offset = head * s->head_dim + first;
    const int64_t together = size % LANES || s->decays > 1 ? 0 : rows - rows % LANES;
    const float *decay = s->decay + head * s->decays;
    float *state = s->state + offset * size;
    for (int64_t token = 0; token < s->tokens; token++) {
        const float time = s->times[token * s->heads + head];
        const float factor = exp_of(*decay * time);
        const float *x = s->x + token * s->x_step + offset;
        const float *b = s->b + token * s->b_step + group * size;
        const float *c = s->c + token * s->c_step + group * size;
        float added[STATE_ROWS], read[STATE_ROWS];
        float *out = s->out + token * s->heads * s->head_dim + offset;
        for (int64_t row = 0; row < rows; row++) added[row] = time * x[row];
        for (int64_t row = 0; row < together; row += LANES)
            update_rows(state + row * size, b, c, factor, added + row, size, read + row);
        for (int64_t row = together; row < rows; row++)
            read[row] = s->decays > 1 ? update_decayed_row(state + row * size, b, c, decay, time,
                                                           added[row], size)
                                      : update_row(state + row * size, b, c, factor, added[row],
                                                   size);
        for (int64_t row = 0; row < rows; row++) out[row] = read[row] + s->skip[head] * x[row];
    }
}

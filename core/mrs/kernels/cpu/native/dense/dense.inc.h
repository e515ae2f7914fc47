/* Products with matrices of floats or halves; included once per instruction set, after
 * attention/arithmetic.inc.h.
 *
 * A result has the same bits however many tokens and threads there are:
 *
 *   weights of a result adjacent   parts[lane] = the sum over k of x[k] * w[k], where k % LANES is
 *                                  the lane, from the first k to the last, by fma; then the upper
 *                                  half of the parts is added to the lower one, until one is left
 *   weights of a depth adjacent    the sum over k of x[k] * w[k] from the first k to the last, by
 *                                  fma
 */
#include "dense/dense.h"

/* Tokens whose sums of two vectors fit in the registers, of which there are 32 or 16. */
#define DENSE_TOKENS (LANES == 8 ? 4 : 8)
#define DENSE_VECTORS 2

/* Up to LANES values at an offset; the missing ones are 0. */
INLINE Floats load_some(const Type type, const void *values, int64_t offset, int64_t count) {
    const size_t size = type == TYPE_F32 ? sizeof(float) : sizeof(uint16_t);
    uint8_t bytes[LANES * sizeof(float)] = {0};
    if (count >= LANES) return load_cached(type, values, offset);
    if (count > 0) memcpy(bytes, (const uint8_t *)values + (size_t)offset * size,
                          (size_t)count * size);
    return load_cached(type, bytes, 0);
}

INLINE float sum_of_lanes(Floats v) {
    float parts[LANES];
    lanes_store(parts, v);
#pragma GCC unroll 4
    for (int half = LANES / 2; half; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; i++) parts[i] += parts[i + half];
    return parts[0];
}

INLINE const float *dense_x(const DenseProduct *p, int64_t head, int64_t token) {
    return p->x + token * p->x_token_step + head * p->x_head_step;
}

INLINE float *dense_out(const DenseProduct *p, int64_t head, int64_t token) {
    return p->out + (token * p->heads + head) * p->rows;
}

/* `count` results of some tokens, where the weights of a result are adjacent. */
INLINE void dense_by_result(const Type type, const int tokens, const int count,
                            const DenseProduct *p, int64_t head, int64_t token, int64_t row) {
    Floats sum[DENSE_VECTORS][DENSE_TOKENS];
    const int64_t offset = head * p->head_step + row * p->row_step;
    const float *x = dense_x(p, head, token);
#pragma GCC unroll 2
    for (int r = 0; r < count; r++)
#pragma GCC unroll 8
        for (int t = 0; t < tokens; t++) sum[r][t] = lanes_zero();
    for (int64_t k = 0; k < p->depth; k += LANES) {
        Floats w[DENSE_VECTORS];
#pragma GCC unroll 2
        for (int r = 0; r < count; r++)
            w[r] = load_some(type, p->weights, offset + r * p->row_step + k, p->depth - k);
#pragma GCC unroll 8
        for (int t = 0; t < tokens; t++) {
            const Floats one = load_some(TYPE_F32, x, t * p->x_token_step + k, p->depth - k);
#pragma GCC unroll 2
            for (int r = 0; r < count; r++) sum[r][t] = lanes_fma(w[r], one, sum[r][t]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < tokens; t++)
#pragma GCC unroll 2
        for (int r = 0; r < count; r++)
            dense_out(p, head, token + t)[row + r] = sum_of_lanes(sum[r][t]);
}

/* Up to two vectors of results of some tokens, where the weights of a depth are adjacent. */
INLINE void dense_by_depth(const Type type, const int tokens, const DenseProduct *p, int64_t head,
                           int64_t token, int64_t row, int64_t rows) {
    Floats sum[DENSE_TOKENS][DENSE_VECTORS];
    int64_t offset = head * p->head_step + row;
    const float *x = dense_x(p, head, token);
#pragma GCC unroll 8
    for (int t = 0; t < tokens; t++)
#pragma GCC unroll 2
        for (int v = 0; v < DENSE_VECTORS; v++) sum[t][v] = lanes_zero();
    for (int64_t k = 0; k < p->depth; k++, offset += p->depth_step) {
        Floats w[DENSE_VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < DENSE_VECTORS; v++)
            w[v] = load_some(type, p->weights, offset + v * LANES, rows - v * LANES);
#pragma GCC unroll 8
        for (int t = 0; t < tokens; t++) {
            const Floats one = lanes_float(x[t * p->x_token_step + k]);
#pragma GCC unroll 2
            for (int v = 0; v < DENSE_VECTORS; v++) sum[t][v] = lanes_fma(w[v], one, sum[t][v]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < tokens; t++) {
        float results[DENSE_VECTORS * LANES];
#pragma GCC unroll 2
        for (int v = 0; v < DENSE_VECTORS; v++) lanes_store(results + v * LANES, sum[t][v]);
        memcpy(dense_out(p, head, token + t) + row, results, (size_t)rows * sizeof(float));
    }
}

INLINE void dense_tokens(const Type type, const int tokens, const DenseProduct *p, int64_t head,
                         int64_t token, int64_t row, int64_t end) {
    if (p->row_step == 1) {
        for (; row < end; row += DENSE_VECTORS * LANES)
            dense_by_depth(type, tokens, p, head, token, row,
                           at_most(end - row, DENSE_VECTORS * LANES));
        return;
    }
    for (; row + DENSE_VECTORS <= end; row += DENSE_VECTORS)
        dense_by_result(type, tokens, DENSE_VECTORS, p, head, token, row);
    for (; row < end; row++) dense_by_result(type, tokens, 1, p, head, token, row);
}

INLINE void multiply_dense_type(const Type type, const DenseProduct *p, int64_t head, int64_t row,
                                int64_t rows) {
    int64_t token = 0;
    for (; token + DENSE_TOKENS <= p->tokens; token += DENSE_TOKENS)
        dense_tokens(type, DENSE_TOKENS, p, head, token, row, row + rows);
    for (; token < p->tokens; token++) dense_tokens(type, 1, p, head, token, row, row + rows);
}

/* `rows` results of one head from `row` on, for all tokens. */
static void multiply_dense(const DenseProduct *p, int64_t head, int64_t row, int64_t rows) {
    switch ((Type)p->type) {
    case TYPE_F32: multiply_dense_type(TYPE_F32, p, head, row, rows); break;
    case TYPE_F16: multiply_dense_type(TYPE_F16, p, head, row, rows); break;
    default: multiply_dense_type(TYPE_BF16, p, head, row, rows); break;
    }
}

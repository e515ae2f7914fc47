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

/* Tokens whose sums of two vectors fit in the registers, of which there are 32 or 16; half as many
 * tokens have the sums of four results. */
#define DENSE_TOKENS (LANES == 8 ? 4 : 8)
#define DENSE_VECTORS 2
#define DENSE_RESULTS 4

/* LANES values at an offset; unless `is_whole`, `count` of them, and the missing ones are 0. */
INLINE Floats load_some(const Type type, const bool is_whole, const void *values, int64_t offset,
                        int64_t count) {
    const size_t size = type == TYPE_F32 ? sizeof(float) : sizeof(uint16_t);
    uint8_t bytes[LANES * sizeof(float)] = {0};
    if (is_whole || count >= LANES) return load_cached(type, values, offset);
    if (count > 0)
        memcpy(bytes, (const uint8_t *)values + (size_t)offset * size, (size_t)count * size);
    return load_cached(type, bytes, 0);
}

/* results[i] = the sum of the lanes of sums[i], which are overwritten. */
INLINE void sum_lanes(Floats *sums, const int count, float *results) {
    for (int first = 0; first < count; first += LANES) {
        Floats v[LANES];
        float some[LANES];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) v[i] = first + i < count ? sums[first + i] : lanes_zero();
        lanes_transpose(v);
#pragma GCC unroll 4
        for (int half = LANES / 2; half; half /= 2)
#pragma GCC unroll 8
            for (int i = 0; i < half; i++) v[i] = lanes_add_floats(v[i], v[i + half]);
        lanes_store(some, v[0]);
        memcpy(results + first, some, (size_t)at_most(LANES, count - first) * sizeof(float));
    }
}

INLINE const float *dense_x(const DenseProduct *p, int64_t head, int64_t token) {
    return p->x + token * p->x_token_step + head * p->x_head_step;
}

INLINE float *dense_out(const DenseProduct *p, int64_t head, int64_t token) {
    return p->out + (token * p->heads + head) * p->rows;
}

/* Adds the products of LANES depths, or of the last ones, to sums[token * count + result]. */
INLINE void add_depths(const Type type, const bool is_whole, const int tokens, const int count,
                       const DenseProduct *p, const float *x, int64_t offset, int64_t k,
                       Floats *sums) {
    Floats w[DENSE_RESULTS];
#pragma GCC unroll 4
    for (int r = 0; r < count; r++)
        w[r] = load_some(type, is_whole, p->weights, offset + r * p->row_step + k, p->depth - k);
#pragma GCC unroll 8
    for (int t = 0; t < tokens; t++) {
        const Floats one =
            load_some(TYPE_F32, is_whole, x, t * p->x_token_step + k, p->depth - k);
#pragma GCC unroll 4
        for (int r = 0; r < count; r++)
            sums[t * count + r] = lanes_fma(w[r], one, sums[t * count + r]);
    }
}

/* `count` results of some tokens, where the weights of a result are adjacent. */
INLINE void dense_by_result(const Type type, const int tokens, const int count,
                            const DenseProduct *p, int64_t head, int64_t token, int64_t row) {
    Floats sums[DENSE_TOKENS * DENSE_RESULTS];
    float results[DENSE_TOKENS * DENSE_RESULTS];
    const int64_t offset = head * p->head_step + row * p->row_step;
    const float *x = dense_x(p, head, token);
#pragma GCC unroll 32
    for (int i = 0; i < tokens * count; i++) sums[i] = lanes_zero();
    int64_t k = 0;
    for (; k + LANES <= p->depth; k += LANES)
        add_depths(type, true, tokens, count, p, x, offset, k, sums);
    if (k < p->depth) add_depths(type, false, tokens, count, p, x, offset, k, sums);
    sum_lanes(sums, tokens * count, results);
    for (int t = 0; t < tokens; t++)
        memcpy(dense_out(p, head, token + t) + row, results + t * count,
               (size_t)count * sizeof(float));
}

/* Up to two vectors of results of some tokens, where the weights of a depth are adjacent. */
INLINE void dense_by_depth(const Type type, const bool is_whole, const int tokens,
                           const DenseProduct *p, int64_t head, int64_t token, int64_t row,
                           int64_t rows) {
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
            w[v] = load_some(type, is_whole, p->weights, offset + v * LANES, rows - v * LANES);
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

/* `rows` results from `row` on of some tokens. */
INLINE void dense_tokens(const Type type, const int tokens, const DenseProduct *p, int64_t head,
                         int64_t token, int64_t row, int64_t rows) {
    const int64_t end = row + rows, whole = DENSE_VECTORS * LANES;
    if (p->row_step == 1) {
        for (; row + whole <= end; row += whole)
            dense_by_depth(type, true, tokens, p, head, token, row, whole);
        if (row < end) dense_by_depth(type, false, tokens, p, head, token, row, end - row);
    } else if (tokens <= DENSE_TOKENS / 2) {
        for (; row + DENSE_RESULTS <= end; row += DENSE_RESULTS)
            dense_by_result(type, tokens, DENSE_RESULTS, p, head, token, row);
        for (; row < end; row++) dense_by_result(type, tokens, 1, p, head, token, row);
    }
}

INLINE void multiply_dense_type(const Type type, const DenseProduct *p, int64_t head, int64_t row,
                                int64_t rows) {
    const int some = DENSE_TOKENS / 2;
    int64_t token = 0;
    for (; p->row_step == 1 && token + DENSE_TOKENS <= p->tokens; token += DENSE_TOKENS)
        dense_tokens(type, DENSE_TOKENS, p, head, token, row, rows);
    for (; token + some <= p->tokens; token += some)
        dense_tokens(type, some, p, head, token, row, rows);
    for (; token < p->tokens; token++) dense_tokens(type, 1, p, head, token, row, rows);
}

/* `rows` results of one head from `row` on, for all tokens. */
static void multiply_dense(const DenseProduct *p, int64_t head, int64_t row, int64_t rows) {
    switch ((Type)p->type) {
    case TYPE_F32: multiply_dense_type(TYPE_F32, p, head, row, rows); break;
    case TYPE_F16: multiply_dense_type(TYPE_F16, p, head, row, rows); break;
    default: multiply_dense_type(TYPE_BF16, p, head, row, rows); break;
    }
}

/* Attention of many tokens at once; included once for each set of lanes.
 *
 * A row is one query: a head of a token, of those that share a head of keys. The lanes are rows, so
 * that scores are (keys, rows) and the mix is (value_dim, rows), and nothing is summed across lanes.
 * Keys are taken some at a time; what was mixed before is weighed anew whenever a larger score
 * appears, as in M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax" (2018).
 */
#include "attend.h"

#define ROW_VECTORS 4
#define ROWS (ROW_VECTORS * LANES)
#define STEP_KEYS 64
/* Rows of sums that are kept in registers, where there are 32 of them or 16. */
#define SUM_ROWS (LANES == 8 ? 2 : 4)
#define FAINT (-1e30f) /* below any score, and still a number */

/* What one task holds, of `dim` numbers: the larger of key_dim and value_dim. */
typedef struct {
    float largest[ROWS], total[ROWS], factor[ROWS];
    int64_t first[ROWS], last[ROWS];
    float scores[STEP_KEYS][ROWS];
    float *queries, *mixed, *cached; /* (key_dim, ROWS), (value_dim, ROWS), (STEP_KEYS, dim) */
} RowBlock;

static int64_t row_block_bytes(const KVCache *cache) {
    const int64_t key_dim = cache->keys.dim, value_dim = cache->values.dim;
    int64_t dim = key_dim > value_dim ? key_dim : value_dim;
    return (int64_t)sizeof(RowBlock) +
           (ROWS * (key_dim + value_dim) + STEP_KEYS * dim) * (int64_t)sizeof(float);
}

/* sums[i][row] += the sum over k of a[i * i_step + k * k_step] * b[k][row], `count` rows of sums. */
INLINE void add_products(const int count, const float *a, int64_t i_step, int64_t k_step,
                         const float *b, int64_t depth, float *sums) {
    Floats sum[SUM_ROWS][ROW_VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < count; i++)
#pragma GCC unroll 4
        for (int v = 0; v < ROW_VECTORS; v++)
            sum[i][v] = lanes_load_floats(sums + i * ROWS + v * LANES);
    for (int64_t k = 0; k < depth; k++, a += k_step, b += ROWS) {
        Floats rows[ROW_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < ROW_VECTORS; v++) rows[v] = lanes_load_floats(b + v * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) {
            const Floats one = lanes_float(a[i * i_step]);
#pragma GCC unroll 4
            for (int v = 0; v < ROW_VECTORS; v++) sum[i][v] = lanes_fma(rows[v], one, sum[i][v]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; i++)
#pragma GCC unroll 4
        for (int v = 0; v < ROW_VECTORS; v++)
            lanes_store(sums + i * ROWS + v * LANES, sum[i][v]);
}

static void add_all_products(const float *a, int64_t i_step, int64_t k_step, const float *b,
                             int64_t depth, int64_t count, float *sums) {
    int64_t i = 0;
    for (; i + SUM_ROWS <= count; i += SUM_ROWS)
        add_products(SUM_ROWS, a + i * i_step, i_step, k_step, b, depth, sums + i * ROWS);
    for (; i < count; i++)
        add_products(1, a + i * i_step, i_step, k_step, b, depth, sums + i * ROWS);
}

/* A few tokens' numbers as floats, `stride` apart: where they lie, or widened into `room`. */
static const float *widen_cached(const Queries *queries, const Cached *cached, int64_t kv_head,
                                 int64_t position, int64_t count, float *room, int64_t *stride) {
    const KVCache *cache = queries->attending->cache;
    const int64_t shift = cache->block_shift, dim = cached->dim;
    const Type type = (Type)cache->type;
    if (type == TYPE_F32 && tokens_in_block(shift, position, count) == count) {
        *stride = cached->token_stride;
        return (const float *)cached->data +
               cached_place(cached, queries->blocks, shift, kv_head, position);
    }
    float *out = room;
    for (int64_t s = 0, size; s < count; s += size) {
        size = tokens_in_block(shift, position + s, count - s);
        int64_t place = cached_place(cached, queries->blocks, shift, kv_head, position + s);
        for (int64_t t = 0; t < size; t++, place += cached->token_stride, out += dim)
            for (int64_t d = 0; d < dim; d += LANES)
                lanes_store(out + d, load_cached(type, cached->data, place + d));
    }
    *stride = dim;
    return room;
}

/* Scores of keys that a row does not see count for nothing. */
static void hide_unseen(RowBlock *block, int64_t key, int64_t keys) {
    for (int64_t s = 0; s < keys; s++)
        for (int row = 0; row < ROWS; row++)
            if (key + s < block->first[row] || key + s > block->last[row])
                block->scores[s][row] = -INFINITY;
}

/* Turns scores into weights against the largest score so far, and weighs anew what is mixed. */
static void weigh_scores(RowBlock *block, int64_t keys, float softcap, int64_t value_dim) {
    float sums[ROWS] = {0}, largest[ROWS];
    memcpy(largest, block->largest, sizeof largest);
    for (int64_t s = 0; s < keys; s++) {
        float *scores = block->scores[s];
        if (softcap > 0) {
#pragma omp simd
            for (int row = 0; row < ROWS; row++)
                scores[row] = scores[row] < FAINT ? scores[row]
                                                  : softcap * tanh_of(scores[row] / softcap);
        }
#pragma omp simd
        for (int row = 0; row < ROWS; row++)
            largest[row] = scores[row] > largest[row] ? scores[row] : largest[row];
    }
#pragma omp simd
    for (int row = 0; row < ROWS; row++) {
        block->factor[row] = exp_of(block->largest[row] - largest[row]);
        block->largest[row] = largest[row];
    }
    for (int64_t s = 0; s < keys; s++) {
        float *scores = block->scores[s];
#pragma omp simd
        for (int row = 0; row < ROWS; row++) {
            scores[row] = exp_of(scores[row] - largest[row]);
            sums[row] += scores[row];
        }
    }
#pragma omp simd
    for (int row = 0; row < ROWS; row++)
        block->total[row] = block->total[row] * block->factor[row] + sums[row];
    for (int64_t d = 0; d < value_dim; d++) {
        float *mixed = block->mixed + d * ROWS;
#pragma omp simd
        for (int row = 0; row < ROWS; row++) mixed[row] *= block->factor[row];
    }
}

/* Where the query of a row begins among all heads of the batch, in units of heads. */
INLINE int64_t row_place(const Queries *queries, int64_t kv_head, int64_t row) {
    const Attending *a = queries->attending;
    const int64_t group = a->heads / a->kv_heads;
    return (queries->row + row / group) * a->heads + kv_head * group + row % group;
}

/* Queries of `rows` rows, scaled, and which keys they see; rows beyond are zeros. */
static void gather_rows(const Queries *queries, int64_t kv_head, int64_t first, int64_t rows,
                        RowBlock *block) {
    const Attending *a = queries->attending;
    const int64_t group = a->heads / a->kv_heads, key_dim = a->cache->keys.dim;
    memset(block->queries, 0, (size_t)(key_dim * ROWS) * sizeof(float));
    memset(block->mixed, 0, (size_t)(a->cache->values.dim * ROWS) * sizeof(float));
    for (int row = 0; row < ROWS; row++) {
        const int64_t same = first + (row < rows ? row : 0), token = same / group;
        const int64_t own = queries->context - queries->tokens + token;
        const int64_t place = row_place(queries, kv_head, same);
        block->first[row] = first_key(a, own);
        block->last[row] = last_key(a, queries->row + token, own);
        block->largest[row] = a->sinks ? a->sinks[place % a->heads] : FAINT;
        block->total[row] = a->sinks ? 1 : 0;
        for (int64_t d = 0; d < key_dim && row < rows; d++)
            block->queries[d * ROWS + row] = a->q[place * key_dim + d] * (float)a->scale;
    }
}

static void scatter_rows(const Queries *queries, int64_t kv_head, int64_t first, int64_t rows,
                         const RowBlock *block) {
    const int64_t dim = queries->attending->cache->values.dim;
    for (int64_t row = 0; row < rows; row++) {
        float *out = queries->attending->out + row_place(queries, kv_head, first + row) * dim;
        const float factor = 1.0f / block->total[row];
        for (int64_t d = 0; d < dim; d++) out[d] = block->mixed[d * ROWS + row] * factor;
    }
}

/* `rows` rows from `first` on, no more than ROWS, of one head of keys of a sequence. Rows are
 * numbered token by token. `room` has row_block_bytes. */
static void attend_rows(const Queries *queries, int64_t kv_head, int64_t first, int64_t rows,
                        void *room) {
    const Attending *a = queries->attending;
    const Cached *keys = &a->cache->keys, *values = &a->cache->values;
    RowBlock *block = room;
    block->queries = (float *)(block + 1);
    block->mixed = block->queries + keys->dim * ROWS;
    block->cached = block->mixed + values->dim * ROWS;
    gather_rows(queries, kv_head, first, rows, block);
    int64_t least = block->first[0], least_last = block->last[0], most_first = least, most = 0;
    for (int row = 0; row < ROWS; row++) {
        least = block->first[row] < least ? block->first[row] : least;
        most_first = block->first[row] > most_first ? block->first[row] : most_first;
        least_last = block->last[row] < least_last ? block->last[row] : least_last;
        most = block->last[row] > most ? block->last[row] : most;
    }
    for (int64_t key = least, count, stride; key <= most; key += count) {
        /* Steps end where blocks do, if these are as large. */
        count = STEP_KEYS - key % STEP_KEYS;
        count = most + 1 - key < count ? most + 1 - key : count;
        const float *k = widen_cached(queries, keys, kv_head, key, count, block->cached, &stride);
        memset(block->scores, 0, (size_t)count * sizeof block->scores[0]);
        add_all_products(k, stride, 1, block->queries, keys->dim, count, block->scores[0]);
        if (key < most_first || key + count - 1 > least_last) hide_unseen(block, key, count);
        weigh_scores(block, count, (float)a->softcap, values->dim);
        const float *v =
            widen_cached(queries, values, kv_head, key, count, block->cached, &stride);
        add_all_products(v, 1, stride, block->scores[0], count, values->dim, block->mixed);
    }
    scatter_rows(queries, kv_head, first, rows, block);
}

/* Attention of many tokens at once; included once per instruction set.
 *
 * A row is one head of one token; the rows of a block share a key head. Each lane is a row, so that
 * scores are (keys, rows), outputs are (value_dim, rows), and nothing is summed across lanes.
 */
#include "attention/attend.inc.h"

#define ROW_VECTORS 4
#define ROWS (ROW_VECTORS * LANES)
/* Rows of sums in registers, of which there are 32 or 16. */
#define SUM_ROWS (LANES == 8 ? 2 : 4)

/* The workspace of a task; `dim` is the larger of key_dim and value_dim. */
typedef struct {
    float largest[ROWS], total[ROWS], factor[ROWS];
    int64_t first[ROWS], last[ROWS];
    float scores[STEP_KEYS][ROWS];
    float *queries, *out, *cached; /* (key_dim, ROWS), (value_dim, ROWS), (STEP_KEYS, dim) */
} RowBlock;

static int64_t row_block_bytes(const KVCache *cache) {
    const int64_t key_dim = cache->keys.dim, value_dim = cache->values.dim;
    int64_t dim = key_dim > value_dim ? key_dim : value_dim;
    return (int64_t)sizeof(RowBlock) +
           (ROWS * (key_dim + value_dim) + STEP_KEYS * dim) * (int64_t)sizeof(float);
}

/* sums[i][row] += the sum over k of a[i * i_step + k * k_step] * b[k][row], for i below `count`. */
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

/* Keys or values of a few tokens as floats, (count, dim) with this stride of the first dimension:
 * in the cache itself if they are floats in one block, or converted into `workspace`. */
static const float *load_cached_floats(const SequenceQueries *queries, const CacheTensor *cached,
                                       int64_t kv_head, int64_t position, int64_t count,
                                       float *workspace, int64_t *stride) {
    const KVCache *cache = queries->params->cache;
    const int64_t shift = cache->block_shift, dim = cached->dim;
    const Type type = (Type)cached->type;
    if (type == TYPE_F32 && tokens_in_block(shift, position, count) == count) {
        *stride = cached->token_stride;
        return (const float *)cached->data +
               cache_offset(cached, queries->blocks, shift, kv_head, position);
    }
    float *out = workspace;
    for (int64_t s = 0, size; s < count; s += size) {
        size = tokens_in_block(shift, position + s, count - s);
        int64_t offset = cache_offset(cached, queries->blocks, shift, kv_head, position + s);
        for (int64_t t = 0; t < size; t++, offset += cached->token_stride, out += dim)
            for (int64_t d = 0; d < dim; d += LANES)
                lanes_store(out + d, load_cached(type, cached->data, offset + d));
    }
    *stride = dim;
    return workspace;
}

/* Masks the scores of keys that a row does not attend to. */
static void mask_scores(RowBlock *block, int64_t key, int64_t keys) {
    for (int64_t s = 0; s < keys; s++)
        for (int row = 0; row < ROWS; row++)
            if (key + s < block->first[row] || key + s > block->last[row])
                block->scores[s][row] = -INFINITY;
}

/* Adds to a SUM_PARTS-th key, as `sum_of_weights` does. */
static void add_parts(float parts[SUM_PARTS][ROWS]) {
    for (int half = SUM_PARTS / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
#pragma omp simd
            for (int row = 0; row < ROWS; row++) parts[i][row] += parts[i + half][row];
}

/* Replaces the scores of the keys from `key` on by their weights, and rescales totals and outputs
 * to the largest score so far. */
static void softmax_step(RowBlock *block, int64_t key, int64_t keys, float softcap,
                         int64_t value_dim) {
    float parts[SUM_PARTS][ROWS] = {{0}}, largest[ROWS];
    memcpy(largest, block->largest, sizeof largest);
    for (int64_t s = 0; s < keys; s++) {
        float *scores = block->scores[s];
        if (softcap > 0) {
#pragma omp simd
            for (int row = 0; row < ROWS; row++) scores[row] = capped(scores[row], softcap);
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
        float *scores = block->scores[s], *part = parts[(key + s) % SUM_PARTS];
#pragma omp simd
        for (int row = 0; row < ROWS; row++) {
            scores[row] = weight_of(scores[row], largest[row]);
            part[row] += scores[row];
        }
    }
    add_parts(parts);
#pragma omp simd
    for (int row = 0; row < ROWS; row++)
        block->total[row] = block->total[row] * block->factor[row] + parts[0][row];
    for (int64_t d = 0; d < value_dim; d++) {
        float *out = block->out + d * ROWS;
#pragma omp simd
        for (int row = 0; row < ROWS; row++) out[row] *= block->factor[row];
    }
}

/* Index of a row among the (tokens, heads) of the batch. */
INLINE int64_t row_index(const SequenceQueries *queries, int64_t kv_head, int64_t row) {
    const AttentionParams *a = queries->params;
    const int64_t group = a->heads / a->kv_heads;
    return (queries->row + row / group) * a->heads + kv_head * group + row % group;
}

/* Gathers the queries of `rows` rows, scaled, and the range of keys of each; missing rows are
 * zeros. */
static void gather_rows(const SequenceQueries *queries, int64_t kv_head, int64_t first,
                        int64_t rows, RowBlock *block) {
    const AttentionParams *a = queries->params;
    const int64_t group = a->heads / a->kv_heads, key_dim = a->cache->keys.dim;
    memset(block->queries, 0, (size_t)(key_dim * ROWS) * sizeof(float));
    memset(block->out, 0, (size_t)(a->cache->values.dim * ROWS) * sizeof(float));
    for (int row = 0; row < ROWS; row++) {
        const int64_t same = first + (row < rows ? row : 0), token = same / group;
        const int64_t own = queries->context - queries->tokens + token;
        const int64_t offset = row_index(queries, kv_head, same);
        block->first[row] = first_key(a, own);
        block->last[row] = last_key(a, queries->row + token, own);
        block->largest[row] = a->sinks ? a->sinks[offset % a->heads] : MIN_SCORE;
        block->total[row] = a->sinks ? 1 : 0;
        for (int64_t d = 0; d < key_dim && row < rows; d++)
            block->queries[d * ROWS + row] = a->q[offset * key_dim + d] * (float)a->scale;
    }
}

static void scatter_rows(const SequenceQueries *queries, int64_t kv_head, int64_t first,
                         int64_t rows, const RowBlock *block) {
    const int64_t dim = queries->params->cache->values.dim;
    for (int64_t row = 0; row < rows; row++) {
        float *out = queries->params->out + row_index(queries, kv_head, first + row) * dim;
        const float factor = 1.0f / block->total[row];
        for (int64_t d = 0; d < dim; d++) out[d] = block->out[d * ROWS + row] * factor;
    }
}

/* `rows` rows from `first` on, ROWS at most, of one key head of a sequence. Rows are numbered token
 * by token. `workspace` has row_block_bytes. */
static void attend_rows(const SequenceQueries *queries, int64_t kv_head, int64_t first,
                        int64_t rows, void *workspace) {
    const AttentionParams *a = queries->params;
    const CacheTensor *keys = &a->cache->keys, *values = &a->cache->values;
    RowBlock *block = workspace;
    block->queries = (float *)(block + 1);
    block->out = block->queries + keys->dim * ROWS;
    block->cached = block->out + values->dim * ROWS;
    gather_rows(queries, kv_head, first, rows, block);
    int64_t min_first = block->first[0], max_first = min_first;
    int64_t min_last = block->last[0], max_last = 0;
    for (int row = 0; row < ROWS; row++) {
        min_first = block->first[row] < min_first ? block->first[row] : min_first;
        max_first = block->first[row] > max_first ? block->first[row] : max_first;
        min_last = block->last[row] < min_last ? block->last[row] : min_last;
        max_last = block->last[row] > max_last ? block->last[row] : max_last;
    }
    for (int64_t key = min_first, count, stride; key <= max_last; key += count) {
        /* Steps end where blocks of the cache do, if these have whole steps. */
        count = STEP_KEYS - key % STEP_KEYS;
        count = max_last + 1 - key < count ? max_last + 1 - key : count;
        const float *k =
            load_cached_floats(queries, keys, kv_head, key, count, block->cached, &stride);
        memset(block->scores, 0, (size_t)count * sizeof block->scores[0]);
        add_all_products(k, stride, 1, block->queries, keys->dim, count, block->scores[0]);
        if (key < max_first || key + count - 1 > min_last) mask_scores(block, key, count);
        softmax_step(block, key, count, (float)a->softcap, values->dim);
        const float *v =
            load_cached_floats(queries, values, kv_head, key, count, block->cached, &stride);
        add_all_products(v, 1, stride, block->scores[0], count, values->dim, block->out);
    }
    scatter_rows(queries, kv_head, first, rows, block);
}

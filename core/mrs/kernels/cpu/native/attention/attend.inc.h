/* Attention of one token over the cache; included once per instruction set.
 *
 * Several query heads that share a key head are computed together, so that a key or value is read
 * and converted once for all of them. A lane is a key for scores, and a dim for outputs.
 */
#include "attention/arithmetic.inc.h"

/* Query heads whose sums fit in the registers, of which there are 32 or 16. */
#define MAX_HEADS (LANES == 8 ? 4 : 8)

/* Some heads while their keys are processed. */
typedef struct {
    const Query *query;
    float *queries, *scores, *out; /* (key dim, heads), (heads, STEP_KEYS), (heads, value dim) */
    float largest[MAX_HEADS], total[MAX_HEADS], factor[MAX_HEADS];
} Heads;

/* The keys of a step that are attended to, as indices in the step, and the offsets of all in the
 * cache. Other keys have the offset of one that is attended to, so that they can be read. */
typedef struct {
    int64_t begin, end;
    int64_t keys[STEP_KEYS], values[STEP_KEYS];
} Step;

static void find_offsets(const SequenceQueries *queries, const CacheTensor *cached,
                         int64_t kv_head, int64_t start, const Step *step, int64_t *offsets) {
    const int64_t shift = queries->params->cache->block_shift;
    int64_t offset = 0;
    for (int64_t s = step->begin, size; s < step->end; s += size) {
        size = tokens_in_block(shift, start + s, step->end - s);
        offset = cache_offset(cached, queries->blocks, shift, kv_head, start + s);
        for (int64_t i = 0; i < size; i++) offsets[s + i] = offset + i * cached->token_stride;
    }
    for (int64_t s = 0; s < step->begin; s++) offsets[s] = offset;
    for (int64_t s = step->end; s < STEP_KEYS; s++) offsets[s] = offset;
}

static void find_chosen(const Query *query, const CacheTensor *cached, int64_t kv_head,
                        int64_t start, int64_t *offsets) {
    const int64_t shift = query->queries->params->cache->block_shift;
    for (int64_t s = 0; s < STEP_KEYS; s++)
        offsets[s] = cache_offset(cached, query->queries->blocks, shift, kv_head,
                                  query->chosen[at_most(start + s, query->last)]);
}

/* The step whose first key is at position `start`, or is that of the chosen ones. */
static void find_step(const Query *query, int64_t kv_head, int64_t start, Step *step) {
    const KVCache *cache = query->queries->params->cache;
    step->begin = query->first > start ? query->first - start : 0;
    step->end = at_most(STEP_KEYS, query->last + 1 - start);
    if (query->chosen) {
        find_chosen(query, &cache->keys, kv_head, start, step->keys);
        find_chosen(query, &cache->values, kv_head, start, step->values);
        return;
    }
    find_offsets(query->queries, &cache->keys, kv_head, start, step, step->keys);
    find_offsets(query->queries, &cache->values, kv_head, start, step, step->values);
}

/* Prefetches `count` values of a token, from dim d on. */
INLINE void prefetch_cached(const Type type, int64_t count, const CacheTensor *cached,
                            int64_t offset, int64_t d) {
    const int size = type == TYPE_F32 ? 4 : 2;
    const uint8_t *data = (const uint8_t *)cached->data + (offset + d) * size;
    for (int64_t i = 0; i < count * size; i += LINE) __builtin_prefetch(data + i, 0, 2);
}

/* tile[i][j] = dim d + i of the key at offsets[j]. */
INLINE void load_tile(const Type type, const void *keys, const int64_t *offsets, int64_t d,
                      Floats tile[LANES]) {
#ifdef HAS_LANES_TRANSPOSE_HALVES
    if (type != TYPE_F32) {
        lanes_transpose_halves((const uint16_t *)keys + d, offsets, type == TYPE_BF16, tile);
        return;
    }
#endif
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) tile[i] = load_cached(type, keys, offsets[i] + d);
    lanes_transpose(tile);
}

/* scores[h][s] = queries[h] . k[s] for `width` heads, a tile of LANES keys and dims at a time. Dims
 * of all keys come before the next dims, so that sums do not wait for each other. The same tiles of
 * the next keys are prefetched. */
INLINE void score_keys(const Type type, const int width, const Heads *heads, const Step *step,
                       const Step *next) {
    const KVCache *cache = heads->query->queries->params->cache;
    const int64_t dim = cache->keys.dim, line_dims = LINE / (type == TYPE_F32 ? 4 : 2);
    const float *q = heads->queries;
    for (int64_t d = 0; d < dim; d += LANES, q += width * LANES)
        for (int64_t s = step->begin / LANES * LANES; s < step->end; s += LANES) {
            float *scores = heads->scores + s;
            Floats tile[LANES], sum[MAX_HEADS];
            if (d % line_dims == 0)
                for (int i = 0; i < LANES; i++)
                    prefetch_cached(type, LANES, &cache->keys, next->keys[s + i], d);
            load_tile(type, cache->keys.data, step->keys + s, d, tile);
#pragma GCC unroll 8
            for (int h = 0; h < width; h++)
                sum[h] = d ? lanes_load_floats(scores + h * STEP_KEYS) : lanes_zero();
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
#pragma GCC unroll 8
                for (int h = 0; h < width; h++)
                    sum[h] = lanes_fma(tile[i], lanes_float(q[i * width + h]), sum[h]);
#pragma GCC unroll 8
            for (int h = 0; h < width; h++) lanes_store(scores + h * STEP_KEYS, sum[h]);
        }
}

/* Adds every SUM_PARTS-th weight, then these parts. */
INLINE float sum_of_weights(const float weights[STEP_KEYS]) {
    float parts[SUM_PARTS];
#pragma omp simd
    for (int i = 0; i < SUM_PARTS; i++) {
        parts[i] = weights[i];
#pragma GCC unroll 4
        for (int s = i + SUM_PARTS; s < STEP_KEYS; s += SUM_PARTS) parts[i] += weights[s];
    }
#pragma GCC unroll 4
    for (int half = SUM_PARTS / 2; half; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; i++) parts[i] += parts[i + half];
    return parts[0];
}

/* Replaces the scores by their weights. */
INLINE void softmax_heads(Heads *heads, const int width, const Step *step, float softcap) {
    float *scores = heads->scores, largest[MAX_HEADS];
    for (int h = 0; h < width; h++) {
        for (int64_t s = 0; s < step->begin; s++) scores[h * STEP_KEYS + s] = -INFINITY;
        for (int64_t s = step->end; s < STEP_KEYS; s++) scores[h * STEP_KEYS + s] = -INFINITY;
    }
    if (softcap > 0) {
#pragma omp simd
        for (int i = 0; i < width * STEP_KEYS; i++) scores[i] = capped(scores[i], softcap);
    }
    for (int h = 0; h < width; h++) {
        float top = heads->largest[h];
#pragma omp simd reduction(max : top)
        for (int s = 0; s < STEP_KEYS; s++)
            top = scores[h * STEP_KEYS + s] > top ? scores[h * STEP_KEYS + s] : top;
        largest[h] = top;
    }
    for (int h = 0; h < width; h++)
#pragma omp simd
        for (int s = 0; s < STEP_KEYS; s++)
            scores[h * STEP_KEYS + s] = weight_of(scores[h * STEP_KEYS + s], largest[h]);
#pragma omp simd
    for (int h = 0; h < width; h++) {
        heads->factor[h] = exp_of(heads->largest[h] - largest[h]);
        heads->largest[h] = largest[h];
    }
    for (int h = 0; h < width; h++)
        heads->total[h] =
            heads->total[h] * heads->factor[h] + sum_of_weights(scores + h * STEP_KEYS);
}

/* out[h][d …] = out[h][d …] * factor + the sum over s of scores[h][s] * v[s][d …], for `width` heads
 * and `vectors` vectors of values. The next values are prefetched. */
INLINE void mix_vectors(const Type type, const int width, const int vectors, const Heads *heads,
                        const Step *step, const Step *next, int64_t d) {
    const KVCache *cache = heads->query->queries->params->cache;
    const CacheTensor *values = &cache->values;
    float *out = heads->out + d;
    Floats sum[MAX_HEADS][4];
#pragma GCC unroll 8
    for (int h = 0; h < width; h++)
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++)
            sum[h][i] = lanes_mul(lanes_load_floats(out + h * values->dim + i * LANES),
                                  lanes_float(heads->factor[h]));
    for (int64_t s = step->begin; s < step->end; s++) {
        prefetch_cached(type, vectors * LANES, values, next->values[s], d);
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) {
            Floats value = load_cached(type, values->data, step->values[s] + d + i * LANES);
#pragma GCC unroll 8
            for (int h = 0; h < width; h++)
                sum[h][i] = lanes_fma(value, lanes_float(heads->scores[h * STEP_KEYS + s]),
                                      sum[h][i]);
        }
    }
#pragma GCC unroll 8
    for (int h = 0; h < width; h++)
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++)
            lanes_store(out + h * values->dim + i * LANES, sum[h][i]);
}

INLINE void mix_values(const Type type, const int width, const Heads *heads, const Step *step,
                       const Step *next) {
    const int64_t dim = heads->query->queries->params->cache->values.dim;
    const int vectors = width > 4 ? 2 : 4; /* 16 sums */
    int64_t d = 0;
    for (; d + vectors * LANES <= dim; d += vectors * LANES)
        mix_vectors(type, width, vectors, heads, step, next, d);
    for (; d < dim; d += LANES) mix_vectors(type, width, 1, heads, step, next, d);
}

/* Scales queries, and empties totals and outputs. */
INLINE void begin_heads(Heads *heads, const float *q, const float *sinks, const int width) {
    const AttentionParams *a = heads->query->queries->params;
    const int64_t dim = a->cache->keys.dim;
    for (int64_t d = 0; d < dim; d++)
        for (int h = 0; h < width; h++)
            heads->queries[d * width + h] = q[h * dim + d] * (float)a->scale;
    memset(heads->out, 0, (size_t)(width * a->cache->values.dim) * sizeof(float));
    for (int h = 0; h < width; h++) {
        heads->largest[h] = sinks ? sinks[h] : MIN_SCORE;
        heads->total[h] = sinks ? 1 : 0;
    }
}

INLINE void attend_heads(const Type type, const int width, const Query *query, int64_t head,
                         float *workspace) {
    const AttentionParams *a = query->queries->params;
    const int64_t key_dim = a->cache->keys.dim, value_dim = a->cache->values.dim;
    const int64_t kv_head = head / (a->heads / a->kv_heads);
    Heads heads = {.query = query,
                   .scores = workspace,
                   .queries = workspace + width * STEP_KEYS,
                   .out = query->out + head * value_dim};
    begin_heads(&heads, query->q + head * key_dim, a->sinks ? a->sinks + head : NULL, width);
    const int64_t first = query->first / STEP_KEYS * STEP_KEYS;
    Step steps[2];
    find_step(query, kv_head, first, &steps[0]);
    for (int64_t start = first, now = 0; start <= query->last; now = !now) {
        start += STEP_KEYS;
        if (start <= query->last)
            find_step(query, kv_head, start, &steps[!now]);
        else /* the next task's first step */
            find_step(query, at_most(kv_head + 1, a->kv_heads - 1), first, &steps[!now]);
        score_keys(type, width, &heads, &steps[now], &steps[!now]);
        softmax_heads(&heads, width, &steps[now], (float)a->softcap);
        mix_values(type, width, &heads, &steps[now], &steps[!now]);
    }
    for (int h = 0; h < width; h++)
        for (int64_t d = 0; d < value_dim; d++)
            heads.out[h * value_dim + d] *= 1.0f / heads.total[h];
}

INLINE void attend_type(const Type type, const Query *query, int64_t head, int64_t heads,
                        float *workspace) {
    const int64_t end = head + heads;
    for (; end - head >= MAX_HEADS; head += MAX_HEADS)
        attend_heads(type, MAX_HEADS, query, head, workspace);
    for (; end - head >= 4; head += 4) attend_heads(type, 4, query, head, workspace);
    for (; end - head >= 2; head += 2) attend_heads(type, 2, query, head, workspace);
    for (; end - head >= 1; head += 1) attend_heads(type, 1, query, head, workspace);
}

/* Some heads that share a key head, TASK_HEADS at most. `workspace` has
 * TASK_HEADS * (key dim + STEP_KEYS) values. */
static void attend(const Query *query, int64_t head, int64_t heads, float *workspace) {
    switch (query->queries->params->cache->keys.type) {
    case TYPE_F32: attend_type(TYPE_F32, query, head, heads, workspace); break;
    case TYPE_F16: attend_type(TYPE_F16, query, head, heads, workspace); break;
    default: attend_type(TYPE_BF16, query, head, heads, workspace); break;
    }
}

/* scores[i] += the parts of `width` heads in the scores of the keys from `first` on to `last`. */
INLINE void add_index_scores(const Type type, const int width, const Query *query, int64_t head,
                             const float *weights, float *scores, float *workspace) {
    const AttentionParams *a = query->queries->params;
    const int64_t dim = a->cache->keys.dim;
    Heads heads = {.query = query, .scores = workspace, .queries = workspace + width * STEP_KEYS};
    for (int64_t d = 0; d < dim; d++)
        for (int h = 0; h < width; h++)
            heads.queries[d * width + h] = query->q[(head + h) * dim + d];
    Step step;
    for (int64_t start = query->first; start <= query->last; start += STEP_KEYS) {
        find_step(query, 0, start, &step);
        score_keys(type, width, &heads, &step, &step);
        for (int h = 0; h < width; h++)
            for (int64_t s = 0; s < step.end; s++) {
                const float product = heads.scores[h * STEP_KEYS + s];
                scores[start - query->first + s] += weights[head + h] * (product > 0 ? product : 0);
            }
    }
}

INLINE void index_scores_type(const Type type, const Query *query, const float *weights,
                              float *scores, float *workspace) {
    const int64_t heads = query->queries->params->heads;
    int64_t head = 0;
    memset(scores, 0, (size_t)(query->last + 1 - query->first) * sizeof(float));
    for (; head + MAX_HEADS <= heads; head += MAX_HEADS)
        add_index_scores(type, MAX_HEADS, query, head, weights, scores, workspace);
    for (; head < heads; head++)
        add_index_scores(type, 1, query, head, weights, scores, workspace);
}

/* The scores of the keys `first`, a multiple of STEP_KEYS, to `last` for a token whose heads have
 * such weights. `workspace` has TASK_HEADS * (key dim + STEP_KEYS) values. */
static void index_scores(const Query *query, const float *weights, float *scores,
                         float *workspace) {
    switch (query->queries->params->cache->keys.type) {
    case TYPE_F32: index_scores_type(TYPE_F32, query, weights, scores, workspace); break;
    case TYPE_F16: index_scores_type(TYPE_F16, query, weights, scores, workspace); break;
    default: index_scores_type(TYPE_BF16, query, weights, scores, workspace); break;
    }
}

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
    int64_t kv_head;
    float *queries, *scores, *out; /* (heads, key dim), (heads, STEP_KEYS), (heads, value dim) */
    float largest[MAX_HEADS], total[MAX_HEADS], factor[MAX_HEADS];
} Heads;

/* The keys of a step that are attended to, as indices in the step, and the offsets of all in the
 * cache. Other keys have the offset of one that is attended to, so that they can be read. */
typedef struct {
    int64_t begin, end;
    int64_t keys[STEP_KEYS], values[STEP_KEYS];
} Step;

static void find_offsets(const Heads *heads, const CacheTensor *cached, int64_t start,
                         const Step *step, int64_t *offsets) {
    const SequenceQueries *queries = heads->query->queries;
    const int64_t shift = queries->params->cache->block_shift;
    int64_t offset = 0;
    for (int64_t s = step->begin, size; s < step->end; s += size) {
        size = tokens_in_block(shift, start + s, step->end - s);
        offset = cache_offset(cached, queries->blocks, shift, heads->kv_head, start + s);
        for (int64_t i = 0; i < size; i++) offsets[s + i] = offset + i * cached->token_stride;
    }
    for (int64_t s = 0; s < step->begin; s++) offsets[s] = offset;
    for (int64_t s = step->end; s < STEP_KEYS; s++) offsets[s] = offset;
}

/* The step whose first key is at position `start`; it is empty after the last key. */
static void find_step(const Heads *heads, int64_t start, Step *step) {
    const Query *query = heads->query;
    const KVCache *cache = query->queries->params->cache;
    step->begin = query->first > start ? query->first - start : 0;
    step->end = at_most(STEP_KEYS, query->last + 1 - start);
    if (step->end <= step->begin) return;
    find_offsets(heads, &cache->keys, start, step, step->keys);
    find_offsets(heads, &cache->values, start, step, step->values);
}

INLINE void prefetch_cached(const Type type, const CacheTensor *cached, int64_t offset) {
    const int size = type == TYPE_F32 ? 4 : 2;
    for (int64_t i = 0; i < cached->dim * size; i += LINE)
        __builtin_prefetch((const uint8_t *)cached->data + offset * size + i, 0, 2);
}

/* scores[h][s] = queries[h] . k[s] for `width` heads; the values are prefetched. */
INLINE void score_keys(const Type type, const int width, const Heads *heads, const Step *step) {
    const KVCache *cache = heads->query->queries->params->cache;
    const int64_t dim = cache->keys.dim;
    for (int64_t s = step->begin / LANES * LANES; s < step->end; s += LANES) {
        for (int i = 0; i < LANES; i++)
            prefetch_cached(type, &cache->values, step->values[s + i]);
        Floats sum[MAX_HEADS];
#pragma GCC unroll 8
        for (int h = 0; h < width; h++) sum[h] = lanes_zero();
        for (int64_t d = 0; d < dim; d += LANES) {
            Floats keys[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                keys[i] = load_cached(type, cache->keys.data, step->keys[s + i] + d);
            lanes_transpose(keys);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
#pragma GCC unroll 8
                for (int h = 0; h < width; h++)
                    sum[h] = lanes_fma(keys[i], lanes_float(heads->queries[h * dim + d + i]),
                                       sum[h]);
        }
#pragma GCC unroll 8
        for (int h = 0; h < width; h++) lanes_store(heads->scores + h * STEP_KEYS + s, sum[h]);
    }
}

/* Adds every SUM_PARTS-th weight, then these parts. */
static float sum_of_weights(const float weights[STEP_KEYS]) {
    float parts[SUM_PARTS];
#pragma omp simd
    for (int i = 0; i < SUM_PARTS; i++) {
        parts[i] = 0;
        for (int s = i; s < STEP_KEYS; s += SUM_PARTS) parts[i] += weights[s];
    }
    for (int half = SUM_PARTS / 2; half; half /= 2)
        for (int i = 0; i < half; i++) parts[i] += parts[i + half];
    return parts[0];
}

/* Replaces the scores of one head by their weights. */
static void softmax_head(Heads *heads, int h, const Step *step, float softcap) {
    float *scores = heads->scores + h * STEP_KEYS, largest = heads->largest[h];
    for (int64_t s = 0; s < step->begin; s++) scores[s] = -INFINITY;
    for (int64_t s = step->end; s < STEP_KEYS; s++) scores[s] = -INFINITY;
    if (softcap > 0) {
#pragma omp simd
        for (int s = 0; s < STEP_KEYS; s++) scores[s] = capped(scores[s], softcap);
    }
#pragma omp simd reduction(max : largest)
    for (int s = 0; s < STEP_KEYS; s++) largest = scores[s] > largest ? scores[s] : largest;
#pragma omp simd
    for (int s = 0; s < STEP_KEYS; s++) scores[s] = weight_of(scores[s], largest);
    heads->factor[h] = exp_of(heads->largest[h] - largest);
    heads->largest[h] = largest;
    heads->total[h] = heads->total[h] * heads->factor[h] + sum_of_weights(scores);
}

/* out[h][d …] = out[h][d …] * factor + the sum over s of scores[h][s] * v[s][d …], for `width` heads
 * and `vectors` vectors of values. */
INLINE void mix_vectors(const Type type, const int width, const int vectors, const Heads *heads,
                        const Step *step, int64_t d) {
    const CacheTensor *values = &heads->query->queries->params->cache->values;
    float *out = heads->out + d;
    Floats sum[MAX_HEADS][4];
#pragma GCC unroll 8
    for (int h = 0; h < width; h++)
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++)
            sum[h][i] = lanes_mul(lanes_load_floats(out + h * values->dim + i * LANES),
                                  lanes_float(heads->factor[h]));
    for (int64_t s = step->begin; s < step->end; s++) {
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

INLINE void mix_values(const Type type, const int width, const Heads *heads, const Step *step) {
    const int64_t dim = heads->query->queries->params->cache->values.dim;
    const int vectors = width > 4 ? 2 : 4; /* 16 sums */
    int64_t d = 0;
    for (; d + vectors * LANES <= dim; d += vectors * LANES)
        mix_vectors(type, width, vectors, heads, step, d);
    for (; d < dim; d += LANES) mix_vectors(type, width, 1, heads, step, d);
}

/* Scales queries, and empties totals and outputs. */
static void begin_heads(Heads *heads, const float *q, const float *sinks, int width) {
    const AttentionParams *a = heads->query->queries->params;
    for (int64_t i = 0; i < width * a->cache->keys.dim; i++)
        heads->queries[i] = q[i] * (float)a->scale;
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
    Heads heads = {.query = query,
                   .kv_head = head / (a->heads / a->kv_heads),
                   .scores = workspace,
                   .queries = workspace + width * STEP_KEYS,
                   .out = query->out + head * value_dim};
    begin_heads(&heads, query->q + head * key_dim, a->sinks ? a->sinks + head : NULL, width);
    Step steps[2];
    int64_t start = query->first / STEP_KEYS * STEP_KEYS;
    find_step(&heads, start, &steps[0]);
    for (int now = 0; start <= query->last; now = !now) {
        const Step *step = &steps[now];
        score_keys(type, width, &heads, step);
        for (int h = 0; h < width; h++) softmax_head(&heads, h, step, (float)a->softcap);
        start += STEP_KEYS;
        find_step(&heads, start, &steps[!now]);
        for (int64_t s = steps[!now].begin; s < steps[!now].end; s++)
            prefetch_cached(type, &a->cache->keys, steps[!now].keys[s]);
        mix_values(type, width, &heads, step);
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
    switch (query->queries->params->cache->type) {
    case TYPE_F32: attend_type(TYPE_F32, query, head, heads, workspace); break;
    case TYPE_F16: attend_type(TYPE_F16, query, head, heads, workspace); break;
    default: attend_type(TYPE_BF16, query, head, heads, workspace); break;
    }
}

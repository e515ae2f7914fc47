/* Attention of one token over the cache; included once per instruction set.
 *
 * Several query heads that share a key head are computed together, so that a key or value is read
 * and converted once for all of them.
 */
#include "attention/attention.h"
#include "elementwise.inc.h"

/* Query heads whose sums fit in the registers, of which there are 32 or 16. */
#define MAX_HEADS (LANES == 8 ? 4 : 8)
#define PREFETCH_TOKENS 16 /* how far ahead keys are prefetched */

INLINE Floats load_cached(const Type type, const void *cache, int64_t offset) {
    switch (type) {
    case TYPE_F32: return lanes_load_floats((const float *)cache + offset);
    case TYPE_F16: return lanes_load_f16((const uint8_t *)((const uint16_t *)cache + offset));
    default: return lanes_load_bf16((const uint16_t *)cache + offset);
    }
}

/* Prefetches `count` values of a token. */
INLINE void prefetch_cached(const Type type, const void *cache, int64_t offset, int64_t count) {
    const int size = type == TYPE_F32 ? 4 : 2;
    for (int64_t i = 0; i < count * size; i += LINE)
        __builtin_prefetch((const uint8_t *)cache + offset * size + i, 0, 2);
}

/* scores[h][s] = q[h] . k[s] * scale for `width` heads. */
INLINE void score_keys(const Type type, const int width, const Query *query, const float *q,
                       int64_t kv_head, float *scores) {
    const AttentionParams *a = query->queries->params;
    const CacheTensor *keys = &a->cache->keys, *values = &a->cache->values;
    const int32_t *blocks = query->queries->blocks;
    const int64_t dim = keys->dim, count = query->count, shift = a->cache->block_shift;
    int64_t offset = cache_offset(keys, blocks, shift, kv_head, query->first);
    for (int64_t start = 0, size; start < count; start += size) {
        size = tokens_in_block(shift, query->first + start, count - start);
        const int64_t position = query->first + start, after = start + size;
        const int64_t value = cache_offset(values, blocks, shift, kv_head, position);
        /* Keys are prefetched some tokens ahead, also from the next block. Values of the same token
         * are prefetched because they are read after all scores. */
        const int64_t next =
            after < count ? cache_offset(keys, blocks, shift, kv_head, position + size) : offset;
        for (int64_t s = start; s < after; s++, offset += keys->token_stride) {
            const int64_t left = after - s;
            prefetch_cached(type, keys->data,
                            left > PREFETCH_TOKENS
                                ? offset + PREFETCH_TOKENS * keys->token_stride
                                : next + (PREFETCH_TOKENS - left) * keys->token_stride,
                            dim);
            prefetch_cached(type, values->data, value + (s - start) * values->token_stride,
                            values->dim);
            Floats sum[MAX_HEADS];
#pragma GCC unroll 8
            for (int h = 0; h < width; h++) sum[h] = lanes_zero();
            for (int64_t d = 0; d < dim; d += LANES) {
                Floats key = load_cached(type, keys->data, offset + d);
#pragma GCC unroll 8
                for (int h = 0; h < width; h++)
                    sum[h] = lanes_fma(key, lanes_load_floats(q + h * dim + d), sum[h]);
            }
            float totals[MAX_HEADS];
            if (width >= 4)
#pragma GCC unroll 2
                for (int h = 0; h < width; h += 4) lanes_four_horizontal_sums(sum + h, totals + h);
            else
                for (int h = 0; h < width; h++) totals[h] = lanes_horizontal_sum(sum[h]);
            for (int h = 0; h < width; h++) scores[h * count + s] = totals[h] * (float)a->scale;
        }
        offset = next;
    }
}

/* out[h][begin …] = sum over s of weights[h][s] * v[s][begin …], for `width` heads and `vectors`
 * vectors of values. */
INLINE void mix_vectors(const Type type, const int width, const int vectors, const Query *query,
                        const float *weights, int64_t kv_head, int64_t begin, float *out) {
    const KVCache *cache = query->queries->params->cache;
    const CacheTensor *values = &cache->values;
    const int64_t dim = values->dim, count = query->count, shift = cache->block_shift;
    Floats sum[MAX_HEADS][4];
#pragma GCC unroll 8
    for (int h = 0; h < width; h++)
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) sum[h][i] = lanes_zero();
    for (int64_t start = 0, size; start < count; start += size) {
        size = tokens_in_block(shift, query->first + start, count - start);
        int64_t offset = begin + cache_offset(values, query->queries->blocks, shift, kv_head,
                                              query->first + start);
        for (int64_t s = start; s < start + size; s++, offset += values->token_stride) {
#pragma GCC unroll 4
            for (int i = 0; i < vectors; i++) {
                Floats value = load_cached(type, values->data, offset + i * LANES);
#pragma GCC unroll 8
                for (int h = 0; h < width; h++)
                    sum[h][i] = lanes_fma(value, lanes_float(weights[h * count + s]), sum[h][i]);
            }
        }
    }
#pragma GCC unroll 8
    for (int h = 0; h < width; h++)
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) lanes_store(out + begin + h * dim + i * LANES, sum[h][i]);
}

INLINE void mix_values(const Type type, const int width, const Query *query, const float *weights,
                       int64_t kv_head, float *out) {
    const int64_t dim = query->queries->params->cache->values.dim;
    const int vectors = width > 4 ? 2 : 4; /* 16 sums */
    int64_t d = 0;
    for (; d + vectors * LANES <= dim; d += vectors * LANES)
        mix_vectors(type, width, vectors, query, weights, kv_head, d, out);
    for (; d < dim; d += LANES) mix_vectors(type, width, 1, query, weights, kv_head, d, out);
}

/* Replaces one head's scores by their softmax, whose sum is less than 1 with a sink. */
static void softmax(const AttentionParams *a, int64_t head, int64_t count, float *scores) {
    const float cap = (float)a->softcap;
    if (cap > 0) {
#pragma omp simd
        for (int64_t s = 0; s < count; s++) scores[s] = cap * tanh_of(scores[s] / cap);
    }
    float largest = a->sinks ? a->sinks[head] : scores[0], sum = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t s = 0; s < count; s++) largest = scores[s] > largest ? scores[s] : largest;
#pragma omp simd reduction(+ : sum)
    for (int64_t s = 0; s < count; s++) {
        scores[s] = exp_of(scores[s] - largest);
        sum += scores[s];
    }
    if (a->sinks) sum += exp_of(a->sinks[head] - largest);
    float factor = 1.0f / sum;
#pragma omp simd
    for (int64_t s = 0; s < count; s++) scores[s] *= factor;
}

INLINE void attend_heads(const Type type, const int width, const Query *query, int64_t head,
                         float *scores) {
    const AttentionParams *a = query->queries->params;
    const int64_t kv_head = head / (a->heads / a->kv_heads), count = query->count;
    score_keys(type, width, query, query->q + head * a->cache->keys.dim, kv_head, scores);
    for (int h = 0; h < width; h++) softmax(a, head + h, count, scores + h * count);
    mix_values(type, width, query, scores, kv_head, query->out + head * a->cache->values.dim);
}

INLINE void attend_type(const Type type, const Query *query, int64_t head, int64_t heads,
                        float *scores) {
    const int64_t end = head + heads;
    for (; end - head >= MAX_HEADS; head += MAX_HEADS)
        attend_heads(type, MAX_HEADS, query, head, scores);
    for (; end - head >= 4; head += 4) attend_heads(type, 4, query, head, scores);
    for (; end - head >= 2; head += 2) attend_heads(type, 2, query, head, scores);
    for (; end - head >= 1; head += 1) attend_heads(type, 1, query, head, scores);
}

/* Some heads that share a key head. `scores` is workspace for MAX_HEADS * count values. */
static void attend(const Query *query, int64_t head, int64_t heads, float *scores) {
    switch (query->queries->params->cache->type) {
    case TYPE_F32: attend_type(TYPE_F32, query, head, heads, scores); break;
    case TYPE_F16: attend_type(TYPE_F16, query, head, heads, scores); break;
    default: attend_type(TYPE_BF16, query, head, heads, scores); break;
    }
}

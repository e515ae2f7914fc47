/* Attention of one token over a cache; included once for each set of lanes.
 *
 * Query heads that share keys are handled several at a time, so that a key or value is read and
 * widened once for all of them.
 */
#include <stdlib.h>

#include "vectors.h"
#include "weights.h"

/* Query heads that share a key's numbers in registers, of which there are 32 or 16. */
#define MOST_HEADS (LANES == 8 ? 4 : 8)
#define AHEAD_TOKENS 16 /* keys are asked for so many tokens before they are looked at */

INLINE Floats load_cached(const Type type, const void *cache, int64_t place) {
    switch (type) {
    case TYPE_F32: return lanes_load_floats((const float *)cache + place);
    case TYPE_F16: return lanes_half((const uint8_t *)((const uint16_t *)cache + place));
    default: return lanes_bf16((const uint16_t *)cache + place);
    }
}

/* Asks for a token's values while its key is looked at: they are wanted next. */
INLINE void prefetch_cached(const Type type, const void *cache, int64_t place, int64_t count) {
    const int size = type == TYPE_F32 ? 4 : 2;
    for (int64_t i = 0; i < count * size; i += LINE)
        __builtin_prefetch((const uint8_t *)cache + place * size + i, 0, 2);
}

/* scores[h][s] = q[h] . k[s] * scale for `width` heads. */
INLINE void score_keys(const Type type, const int width, const Sight *sight, const float *q,
                       int64_t kv_head, float *scores) {
    const Attending *a = sight->queries->attending;
    const Cached *keys = &a->cache->keys, *values = &a->cache->values;
    const int32_t *blocks = sight->queries->blocks;
    const int64_t dim = keys->dim, count = sight->count, shift = a->cache->block_shift;
    int64_t place = cached_place(keys, blocks, shift, kv_head, sight->first);
    for (int64_t start = 0, size; start < count; start += size) {
        size = tokens_in_block(shift, sight->first + start, count - start);
        const int64_t position = sight->first + start, after = start + size;
        const int64_t value = cached_place(values, blocks, shift, kv_head, position);
        /* Keys some tokens ahead are asked for: behind a block's end, those of the next one. */
        const int64_t next =
            after < count ? cached_place(keys, blocks, shift, kv_head, position + size) : place;
        for (int64_t s = start; s < after; s++, place += keys->token_stride) {
            const int64_t left = after - s;
            prefetch_cached(type, keys->data,
                            left > AHEAD_TOKENS
                                ? place + AHEAD_TOKENS * keys->token_stride
                                : next + (AHEAD_TOKENS - left) * keys->token_stride,
                            dim);
            prefetch_cached(type, values->data, value + (s - start) * values->token_stride,
                            values->dim);
            Floats sum[MOST_HEADS];
#pragma GCC unroll 8
            for (int h = 0; h < width; h++) sum[h] = lanes_zero();
            for (int64_t d = 0; d < dim; d += LANES) {
                Floats key = load_cached(type, keys->data, place + d);
#pragma GCC unroll 8
                for (int h = 0; h < width; h++)
                    sum[h] = lanes_fma(key, lanes_load_floats(q + h * dim + d), sum[h]);
            }
            float totals[MOST_HEADS];
            if (width >= 4)
#pragma GCC unroll 2
                for (int h = 0; h < width; h += 4) lanes_four_totals(sum + h, totals + h);
            else
                for (int h = 0; h < width; h++) totals[h] = lanes_total(sum[h]);
            for (int h = 0; h < width; h++) scores[h * count + s] = totals[h] * (float)a->scale;
        }
        place = next;
    }
}

/* `vectors` vectors of out[h] = sum of weights[h][s] * v[s], for `width` heads, from the numbers
 * `begin` on. */
INLINE void mix_vectors(const Type type, const int width, const int vectors, const Sight *sight,
                        const float *weights, int64_t kv_head, int64_t begin, float *out) {
    const KVCache *cache = sight->queries->attending->cache;
    const Cached *values = &cache->values;
    const int64_t dim = values->dim, count = sight->count, shift = cache->block_shift;
    Floats sum[MOST_HEADS][4];
#pragma GCC unroll 8
    for (int h = 0; h < width; h++)
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) sum[h][i] = lanes_zero();
    for (int64_t start = 0, size; start < count; start += size) {
        size = tokens_in_block(shift, sight->first + start, count - start);
        int64_t place = begin + cached_place(values, sight->queries->blocks, shift, kv_head,
                                             sight->first + start);
        for (int64_t s = start; s < start + size; s++, place += values->token_stride) {
#pragma GCC unroll 4
            for (int i = 0; i < vectors; i++) {
                Floats value = load_cached(type, values->data, place + i * LANES);
#pragma GCC unroll 8
                for (int h = 0; h < width; h++)
                    sum[h][i] = lanes_fma(value, lanes_float(weights[h * count + s]), sum[h][i]);
            }
        }
    }
#pragma GCC unroll 8
    for (int h = 0; h < width; h++)
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++)
            lanes_store(out + begin + h * dim + i * LANES, sum[h][i]);
}

INLINE void mix_values(const Type type, const int width, const Sight *sight,
                       const float *weights, int64_t kv_head, float *out) {
    const int64_t dim = sight->queries->attending->cache->values.dim;
    const int vectors = width > 4 ? 2 : 4; /* 16 sums */
    int64_t d = 0;
    for (; d + vectors * LANES <= dim; d += vectors * LANES)
        mix_vectors(type, width, vectors, sight, weights, kv_head, d, out);
    for (; d < dim; d += LANES) mix_vectors(type, width, 1, sight, weights, kv_head, d, out);
}

/* Turns one head's scores into weights that add up to one, or less with a sink. */
static void softmax(const Attending *a, int64_t head, int64_t count, float *scores) {
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

INLINE void attend_heads(const Type type, const int width, const Sight *sight, int64_t head,
                         float *scores) {
    const Attending *a = sight->queries->attending;
    const int64_t kv_head = head / (a->heads / a->kv_heads), count = sight->count;
    score_keys(type, width, sight, sight->q + head * a->cache->keys.dim, kv_head, scores);
    for (int h = 0; h < width; h++) softmax(a, head + h, count, scores + h * count);
    mix_values(type, width, sight, scores, kv_head, sight->out + head * a->cache->values.dim);
}

INLINE void attend_type(const Type type, const Sight *sight, int64_t head, int64_t heads,
                        float *scores) {
    const int64_t end = head + heads;
    for (; end - head >= MOST_HEADS; head += MOST_HEADS)
        attend_heads(type, MOST_HEADS, sight, head, scores);
    for (; end - head >= 4; head += 4) attend_heads(type, 4, sight, head, scores);
    for (; end - head >= 2; head += 2) attend_heads(type, 2, sight, head, scores);
    for (; end - head >= 1; head += 1) attend_heads(type, 1, sight, head, scores);
}

/* Some heads that share a head of keys. `scores` has room for 8 times the visible keys. */
static void attend(const Sight *sight, int64_t head, int64_t heads, float *scores) {
    switch (sight->queries->attending->cache->type) {
    case TYPE_F32: attend_type(TYPE_F32, sight, head, heads, scores); break;
    case TYPE_F16: attend_type(TYPE_F16, sight, head, heads, scores); break;
    default: attend_type(TYPE_BF16, sight, head, heads, scores); break;
    }
}

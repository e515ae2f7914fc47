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
    const Attending *a = sight->attending;
    const int64_t dim = a->key_dim, first = sight->first, count = sight->count;
    for (int64_t s = 0; s < count; s++) {
        int64_t place = kv_head * a->k_stride + (first + s) * dim;
        prefetch_cached(type, a->k, place + 16 * dim, dim);
        prefetch_cached(type, a->v, kv_head * a->v_stride + (first + s) * a->value_dim,
                        a->value_dim);
        Floats sum[MOST_HEADS];
#pragma GCC unroll 8
        for (int h = 0; h < width; h++) sum[h] = lanes_zero();
        for (int64_t d = 0; d < dim; d += LANES) {
            Floats key = load_cached(type, a->k, place + d);
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
}

/* `vectors` vectors of out[h] = sum of weights[h][s] * v[s], for `width` heads; `start` is where
 * they begin in the first visible token. */
INLINE void mix_vectors(const Type type, const int width, const int vectors, const Sight *sight,
                        const float *weights, int64_t start, float *out) {
    const Attending *a = sight->attending;
    const int64_t dim = a->value_dim, count = sight->count;
    Floats sum[MOST_HEADS][4];
#pragma GCC unroll 8
    for (int h = 0; h < width; h++)
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) sum[h][i] = lanes_zero();
    for (int64_t s = 0; s < count; s++) {
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) {
            Floats value = load_cached(type, a->v, start + s * dim + i * LANES);
#pragma GCC unroll 8
            for (int h = 0; h < width; h++)
                sum[h][i] = lanes_fma(value, lanes_float(weights[h * count + s]), sum[h][i]);
        }
    }
#pragma GCC unroll 8
    for (int h = 0; h < width; h++)
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++) lanes_store(out + h * dim + i * LANES, sum[h][i]);
}

INLINE void mix_values(const Type type, const int width, const Sight *sight,
                       const float *weights, int64_t kv_head, float *out) {
    const Attending *a = sight->attending;
    const int64_t start = kv_head * a->v_stride + sight->first * a->value_dim;
    const int vectors = width > 4 ? 2 : 4; /* 16 sums */
    int64_t d = 0;
    for (; d + vectors * LANES <= a->value_dim; d += vectors * LANES)
        mix_vectors(type, width, vectors, sight, weights, start + d, out + d);
    for (; d < a->value_dim; d += LANES)
        mix_vectors(type, width, 1, sight, weights, start + d, out + d);
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
    const Attending *a = sight->attending;
    const int64_t kv_head = head / (a->heads / a->kv_heads), count = sight->count;
    score_keys(type, width, sight, sight->q + head * a->key_dim, kv_head, scores);
    for (int h = 0; h < width; h++) softmax(a, head + h, count, scores + h * count);
    mix_values(type, width, sight, scores, kv_head, sight->out + head * a->value_dim);
}

INLINE void attend_type(const Type type, const Sight *sight, int64_t kv_head, float *scores) {
    const int64_t group = sight->attending->heads / sight->attending->kv_heads;
    int64_t head = kv_head * group, end = head + group;
    for (; end - head >= MOST_HEADS; head += MOST_HEADS)
        attend_heads(type, MOST_HEADS, sight, head, scores);
    for (; end - head >= 4; head += 4) attend_heads(type, 4, sight, head, scores);
    for (; end - head >= 2; head += 2) attend_heads(type, 2, sight, head, scores);
    for (; end - head >= 1; head += 1) attend_heads(type, 1, sight, head, scores);
}

/* All heads of one head of keys. `scores` has room for 8 times the visible keys. */
static void attend(const Sight *sight, int64_t kv_head, float *scores) {
    switch (sight->attending->type) {
    case TYPE_F32: attend_type(TYPE_F32, sight, kv_head, scores); break;
    case TYPE_F16: attend_type(TYPE_F16, sight, kv_head, scores); break;
    default: attend_type(TYPE_BF16, sight, kv_head, scores); break;
    }
}

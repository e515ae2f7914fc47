/* The halves of a decoder's layer, each in one call: between its steps nothing goes back to the
 * interpreter, whose own memory the weights have driven out of the caches. */
#include "layer.h"

#include <string.h>

#include "half.h"

static bool feed_forward_some(const FeedForward *f, const float *x, int64_t tokens, float *scratch,
                              float *out, int threads) {
    const Path *path = f->gate->path;
    int64_t hidden = f->gate->columns, numbers = tokens * f->gate->rows;
    float *normed = scratch, *gate = normed + tokens * hidden, *up = gate + numbers;
    Factor wide[] = {{f->gate, gate, NULL}, {f->up, up, NULL}}, down = {f->down, out, x};
    mrs_rms_norm(path, x, f->norm, (float)f->eps, tokens, hidden, normed, threads);
    if (!multiply_each(wide, 2, normed, TYPE_F32, tokens, threads)) return false;
    mrs_gate(path, (int)f->activation, gate, up, numbers, threads);
    return multiply_each(&down, 1, gate, TYPE_F32, tokens, threads);
}

/* x + down(activation(gate(normed)) * up(normed)), where normed is the norm of x (tokens, hidden),
 * for `chunk` tokens at a time, or more where fewer would be left. `scratch` holds 2 * chunk *
 * (hidden + 2 * intermediate) numbers. Returns false when memory is missing. */
EXPORT bool mrs_feed_forward(const FeedForward *f, const float *x, int64_t tokens, int64_t chunk,
                             float *scratch, float *out, int threads) {
    int64_t hidden = f->gate->columns, count;
    for (int64_t token = 0; token < tokens; token += count) {
        count = tokens - token < 2 * chunk ? tokens - token : chunk;
        if (!feed_forward_some(f, x + token * hidden, count, scratch, out + token * hidden,
                               threads))
            return false;
    }
    return true;
}

/* Writes x (tokens, heads, dim) into a cache of `keys` tokens as its last ones. */
static void store_cached(const float *x, int64_t tokens, int64_t heads, int64_t dim, Type type,
                         void *cache, int64_t stride, int64_t keys) {
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < heads; h++, x += dim) {
            int64_t place = h * stride + (keys - tokens + t) * dim;
            if (type == TYPE_F32)
                memcpy((float *)cache + place, x, (size_t)dim * sizeof(float));
            else if (type == TYPE_F16)
                for (int64_t i = 0; i < dim; i++)
                    ((uint16_t *)cache)[place + i] = half_of_float(x[i]);
            else
                for (int64_t i = 0; i < dim; i++)
                    ((uint16_t *)cache)[place + i] = bf16_of_float(x[i]);
        }
}

/* x + back(attention), both (tokens, hidden): queries, keys and values are products of x's norm,
 * the first two turned by the angles (tokens, pairs). `a` says where queries go and where the
 * cache is, which has room for the new tokens. `scratch` holds what norm, keys and values take.
 * Returns false when memory is missing. */
EXPORT bool mrs_attention(const AttentionHalf *half, const Attending *a, const float *x,
                          const float *cos, const float *sin, float *scratch, float *out,
                          int threads) {
    const Path *path = half->q->path;
    int64_t tokens = a->tokens, kv_heads = a->kv_heads, pairs = half->pairs;
    float *q = (float *)a->q, *normed = scratch, *k = normed + tokens * half->q->columns;
    float *v = k + tokens * kv_heads * a->key_dim;
    Factor wide[] = {{half->q, q, NULL}, {half->k, k, NULL}, {half->v, v, NULL}};
    Factor back = {half->back, out, x};
    bool turns_neighbours = half->interleaved != 0;
    mrs_rms_norm(path, x, half->norm, (float)half->eps, tokens, half->q->columns, normed, threads);
    if (!multiply_each(wide, 3, normed, TYPE_F32, tokens, threads)) return false;
    mrs_rotate(path, q, cos, sin, tokens, a->heads, a->key_dim, pairs, turns_neighbours, q,
               threads);
    mrs_rotate(path, k, cos, sin, tokens, kv_heads, a->key_dim, pairs, turns_neighbours, k,
               threads);
    store_cached(k, tokens, kv_heads, a->key_dim, (Type)a->type, (void *)a->k, a->k_stride,
                 a->keys);
    store_cached(v, tokens, kv_heads, a->value_dim, (Type)a->type, (void *)a->v, a->v_stride,
                 a->keys);
    return mrs_attend(path, a, threads) &&
           multiply_each(&back, 1, a->out, TYPE_F32, tokens, threads);
}

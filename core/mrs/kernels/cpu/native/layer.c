/* The halves of a decoder's layer, or whole layers, in one call: between its steps nothing goes back
 * to the interpreter, whose own memory the weights have driven out of the caches. */
#include "layer.h"

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
 * for `most` tokens at a time or a little fewer, in whole panels. `scratch` holds most * (hidden +
 * 2 * intermediate) numbers, or what `tokens` need if they are fewer; `out` may be x. Returns false
 * when memory is missing. */
EXPORT bool mrs_feed_forward(const FeedForward *f, const float *x, int64_t tokens, int64_t most,
                             float *scratch, float *out, int threads) {
    const int64_t hidden = f->gate->columns, panel = WIDE_TOKENS;
    int64_t pieces = divide_up(tokens, most), count = divide_up(divide_up(tokens, pieces), panel);
    for (int64_t token = 0; token < tokens; token += count * panel)
        if (!feed_forward_some(f, x + token * hidden, at_most(count * panel, tokens - token),
                               scratch, out + token * hidden, threads))
            return false;
    return true;
}

static void add_bias(float *x, const float *bias, int64_t tokens, int64_t size) {
    for (int64_t t = 0; bias && t < tokens; t++, x += size)
        for (int64_t i = 0; i < size; i++) x[i] += bias[i];
}

/* New queries or keys (tokens, heads, head_dim), from where a product has left them. */
static void finish_heads(const AttentionHalf *half, float *x, const float *bias, const float *norm,
                         const Angles *angles, int64_t tokens, int64_t heads, int threads) {
    const Path *path = half->q->path;
    int64_t dim = half->head_dim;
    add_bias(x, bias, tokens, heads * dim);
    if (norm)
        mrs_rms_norm(path, x, norm, (float)half->head_eps, tokens * heads, dim, x, threads);
    mrs_rotate(path, x, angles->cos, angles->sin, tokens, heads, dim, half->pairs,
               half->interleaved != 0, x, threads);
}

/* x + back(attention), both (tokens, hidden), for the tokens of a batch: queries, keys and values
 * are products of x's norm, with a bias, the first two normed by heads and turned by the angles; the
 * latter two are written to the cache. `scratch` holds, for each token, a norm, keys and values, and
 * queries twice; `out` may be x. Returns false when memory is missing. */
EXPORT bool mrs_attention(const AttentionHalf *half, const KVCache *cache, const Batch *batch,
                          const Angles *angles, const float *x, float *scratch, float *out,
                          int threads) {
    const Path *path = half->q->path;
    int64_t tokens = batch->tokens, dim = half->head_dim, hidden = half->q->columns;
    int64_t heads = half->q->rows / dim, kv_heads = half->k->rows / dim;
    float *q = scratch, *mixed = q + tokens * heads * dim, *normed = mixed + tokens * heads * dim;
    float *k = normed + tokens * hidden, *v = k + tokens * kv_heads * dim;
    Factor wide[] = {{half->q, q, NULL}, {half->k, k, NULL}, {half->v, v, NULL}};
    Factor back = {half->back, out, x};
    mrs_rms_norm(path, x, half->norm, (float)half->eps, tokens, hidden, normed, threads);
    if (!multiply_each(wide, 3, normed, TYPE_F32, tokens, threads)) return false;
    finish_heads(half, q, half->q_bias, half->q_norm, angles, tokens, heads, threads);
    finish_heads(half, k, half->k_bias, half->k_norm, angles, tokens, kv_heads, threads);
    add_bias(v, half->v_bias, tokens, kv_heads * dim);
    mrs_write_kv(cache, batch, k, v, kv_heads, threads);
    Attending attending = {.q = q,
                           .out = mixed,
                           .cache = cache,
                           .batch = batch,
                           .heads = heads,
                           .kv_heads = kv_heads,
                           .window = half->window,
                           .scale = half->scale,
                           .softcap = half->softcap};
    return mrs_attend(path, &attending, threads) &&
           multiply_each(&back, 1, mixed, TYPE_F32, tokens, threads);
}

/* x (tokens, hidden) through both halves of `count` layers, each with its cache; all batches have as
 * many tokens. `scratch` holds what the largest half takes. Returns false when memory is missing. */
EXPORT bool mrs_layers(const Layer *layers, int64_t count, const KVCache *const *caches,
                       const Batch *const *batches, const Angles *angles, const float *x,
                       float *scratch, float *out, int threads) {
    const int64_t tokens = batches[0]->tokens;
    for (int64_t i = 0; i < count; i++, x = out) {
        const Layer *layer = &layers[i];
        if (!mrs_attention(layer->attention, caches[i], batches[layer->group],
                           &angles[layer->rope], x, scratch, out, threads) ||
            !mrs_feed_forward(layer->feed_forward, out, tokens, tokens, scratch, out, threads))
            return false;
    }
    return true;
}

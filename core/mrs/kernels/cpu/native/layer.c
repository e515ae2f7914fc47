/* A block of a decoder layer, several layers, or a whole model in one call: a return to the
 * interpreter between the steps would be slow, since the weights have evicted its memory from the
 * caches. */
#include "layer.h"

#include <string.h>

#include "bounds.h"

#define PIECE_TOKENS 32 /* the tokens of a piece are a multiple of this */

static bool feed_forward_piece(const FeedForward *f, const float *x, int64_t tokens, float *scratch,
                              float *out, int threads) {
    const KernelTable *kernels = f->gate->kernels;
    int64_t hidden = f->gate->columns, values = tokens * f->gate->rows;
    float *normed = scratch, *gate = normed + tokens * hidden, *up = gate + values;
    MatmulOperand operands[] = {{f->gate, gate, NULL}, {f->up, up, NULL}}, down = {f->down, out, x};
    const Norm norm = {f->norm, (float)f->eps, normed};
    if (!multiply_normed(operands, 2, norm, x, tokens, threads)) return false;
    mrs_gate(kernels, (int)f->activation, gate, up, values, threads);
    return multiply_each(&down, 1, gate, TYPE_F32, tokens, threads);
}

static bool feed_forward(const FeedForward *f, const float *x, int64_t tokens, int64_t max_tokens,
                         float *scratch, float *out, int threads) {
    const int64_t hidden = f->gate->columns;
    const int64_t pieces = divide_up(tokens, max_tokens);
    const int64_t count = divide_up(divide_up(tokens, pieces), PIECE_TOKENS) * PIECE_TOKENS;
    for (int64_t token = 0; token < tokens; token += count)
        if (!feed_forward_piece(f, x + token * hidden, at_most(count, tokens - token),
                                scratch, out + token * hidden, threads))
            return false;
    return true;
}

/* out = x + down(activation(gate(normed)) * up(normed)), where normed is the norm of x (tokens,
 * hidden); computed for up to `max_tokens` tokens at a time, in pieces of equal size. `scratch` has
 * min(tokens, max_tokens) * (hidden + 2 * intermediate) values; `out` may be x. */
EXPORT Outcome mrs_feed_forward(const FeedForward *f, const float *x, int64_t tokens,
                                int64_t max_tokens, float *scratch, float *out, int threads) {
    return done_if(feed_forward(f, x, tokens, max_tokens, scratch, out, threads));
}

static void add_bias(float *x, const float *bias, int64_t tokens, int64_t size) {
    for (int64_t t = 0; bias && t < tokens; t++, x += size)
        for (int64_t i = 0; i < size; i++) x[i] += bias[i];
}

/* Adds the bias to new queries or keys (tokens, heads, head_dim), then norms and rotates them. */
static void finish_heads(const AttentionBlock *block, float *x, const float *bias,
                         const float *norm, const Angles *angles, int64_t tokens, int64_t heads,
                         int threads) {
    const KernelTable *kernels = block->q->kernels;
    int64_t dim = block->head_dim;
    add_bias(x, bias, tokens, heads * dim);
    if (norm)
        mrs_rms_norm(kernels, x, norm, (float)block->head_eps, tokens * heads, dim, x, threads);
    mrs_rotate(kernels, x, angles->cos, angles->sin, tokens, heads, dim, block->pairs,
               block->interleaved != 0, x, threads);
}

static bool attention(const AttentionBlock *block, const KVCache *cache, const Batch *batch,
                      const Angles *angles, const float *x, float *scratch, float *out,
                      int threads) {
    const KernelTable *kernels = block->q->kernels;
    int64_t tokens = batch->tokens, dim = block->head_dim, hidden = block->q->columns;
    int64_t heads = block->q->rows / dim, kv_heads = block->k->rows / dim;
    float *q = scratch, *attended = q + tokens * heads * dim;
    float *normed = attended + tokens * heads * dim;
    float *k = normed + tokens * hidden, *v = k + tokens * kv_heads * dim;
    MatmulOperand operands[] = {{block->q, q, NULL}, {block->k, k, NULL}, {block->v, v, NULL}};
    MatmulOperand back = {block->back, out, x};
    const Norm norm = {block->norm, (float)block->eps, normed};
    if (!multiply_normed(operands, 3, norm, x, tokens, threads)) return false;
    finish_heads(block, q, block->q_bias, block->q_norm, angles, tokens, heads, threads);
    finish_heads(block, k, block->k_bias, block->k_norm, angles, tokens, kv_heads, threads);
    add_bias(v, block->v_bias, tokens, kv_heads * dim);
    write_batch(kernels, cache, batch, k, v, kv_heads, threads);
    AttentionParams params = {.q = q,
                              .out = attended,
                              .cache = cache,
                              .batch = batch,
                              .tokens = tokens,
                              .heads = heads,
                              .kv_heads = kv_heads,
                              .window = block->window,
                              .scale = block->scale,
                              .softcap = block->softcap};
    return attend_batch(kernels, &params, threads) &&
           multiply_each(&back, 1, attended, TYPE_F32, tokens, threads);
}

static Outcome check_layer(const KVCache *cache, const Batch *batch, const Angles *angles,
                           int64_t tokens) {
    if (angles->tokens != tokens) return (Outcome){BAD_TOKENS, angles->tokens, tokens};
    return check_step(cache, batch, tokens);
}

/* out = x + back(attention(q, k, v)), (tokens, hidden), for the tokens of a batch: q, k and v are
 * products of x's norm plus a bias; q and k are normed per head and rotated; k and v are written to
 * the cache. `scratch` has tokens * (hidden + 2 * q rows + k rows + v rows) values; `out` may be
 * x. */
EXPORT Outcome mrs_attention(const AttentionBlock *block, const KVCache *cache, const Batch *batch,
                             const Angles *angles, const float *x, int64_t tokens, float *scratch,
                             float *out, int threads) {
    const Outcome outcome = check_layer(cache, batch, angles, tokens);
    if (outcome.code) return outcome;
    return done_if(attention(block, cache, batch, angles, x, scratch, out, threads));
}

static bool all_layers(const Layer *layers, int64_t count, const KVCache *const *caches,
                       const Batch *const *batches, const Angles *angles, const float *x,
                       int64_t tokens, float *scratch, float *out, int threads) {
    for (int64_t i = 0; i < count; i++, x = out) {
        const Layer *layer = &layers[i];
        if (!attention(layer->attention, caches[i], batches[layer->group], &angles[layer->rope], x,
                       scratch, out, threads) ||
            !feed_forward(layer->feed_forward, out, tokens, tokens, scratch, out, threads))
            return false;
    }
    return true;
}

/* What each layer reads of the `groups` batches and the `ropes` angles of a step. */
static Outcome check_layers(const Layer *layers, int64_t count, const KVCache *const *caches,
                            const Batch *const *batches, int64_t groups, const Angles *angles,
                            int64_t ropes, int64_t tokens) {
    Outcome outcome = {DONE, 0, 0};
    for (int64_t i = 0; !outcome.code && i < count; i++) {
        const Layer *layer = &layers[i];
        outcome = check_all(BAD_GROUP, &layer->group, 1, groups);
        if (!outcome.code) outcome = check_all(BAD_ROPE, &layer->rope, 1, ropes);
        if (!outcome.code)
            outcome = check_layer(caches[i], batches[layer->group], &angles[layer->rope], tokens);
    }
    return outcome;
}

/* out = x (tokens, hidden) after `count` layers, each with its own cache; all batches have the same
 * number of tokens. `scratch` is that of the largest block. */
EXPORT Outcome mrs_layers(const Layer *layers, int64_t count, const KVCache *const *caches,
                          const Batch *const *batches, int64_t groups, const Angles *angles,
                          int64_t ropes, const float *x, int64_t tokens, float *scratch, float *out,
                          int threads) {
    const Outcome outcome =
        check_layers(layers, count, caches, batches, groups, angles, ropes, tokens);
    if (outcome.code) return outcome;
    return done_if(
        all_layers(layers, count, caches, batches, angles, x, tokens, scratch, out, threads));
}

static bool read_out(const Readout *readout, const float *x, int64_t tokens, float *scratch,
                     float *out, int threads) {
    const MatmulOperand operand = {readout->head, out, NULL};
    const Norm norm = {readout->norm, (float)readout->eps, scratch};
    return multiply_normed(&operand, 1, norm, x, tokens, threads);
}

/* out (tokens, vocabulary) = the logits of x (tokens, hidden): the final norm, then the output head.
 * `scratch` has tokens * hidden values. */
EXPORT Outcome mrs_readout(const Readout *readout, const float *x, int64_t tokens, float *scratch,
                           float *out, int threads) {
    return done_if(read_out(readout, x, tokens, scratch, out, threads));
}

/* Copies the rows of a table at the positions of the new tokens to `rows` (2, tokens, pairs). One
 * row need not be copied. */
static Angles look_up(const RopeTable *table, const int64_t *positions, int64_t tokens,
                      float *rows) {
    const int64_t pairs = table->pairs;
    if (tokens == 1)
        return (Angles){table->cos + positions[0] * pairs, table->sin + positions[0] * pairs, 1};
    float *cos = rows, *sin = rows + tokens * pairs;
    for (int64_t t = 0; t < tokens; t++) {
        memcpy(cos + t * pairs, table->cos + positions[t] * pairs, (size_t)pairs * sizeof(float));
        memcpy(sin + t * pairs, table->sin + positions[t] * pairs, (size_t)pairs * sizeof(float));
    }
    return (Angles){cos, sin, tokens};
}

/* The logits (tokens, vocabulary) after new tokens, `ids`, at `positions`, for which `ropes` have
 * rows. `states` has for each token the hidden values and twice the pairs of each rope. Until the
 * logits are known, their memory is the scratch of the layers, and must have room for that. */
EXPORT Outcome mrs_model(const Model *model, const KVCache *const *caches,
                         const Batch *const *batches, int64_t groups, const RopeTable *ropes,
                         const int64_t *ids, const int64_t *positions, int64_t tokens,
                         float *states, float *logits, int threads) {
    const int64_t hidden = model->embedding->columns, count = model->layer_count;
    const float scale = (float)model->embedding_scale;
    float *x = states, *rows = x + tokens * hidden;
    Angles angles[MAX_ROPES];
    Outcome outcome = check_all(BAD_ROW, ids, tokens, model->embedding->rows);
    for (int i = 0; i < model->rope_count && !outcome.code; rows += 2 * tokens * ropes[i++].pairs) {
        outcome = check_all(BAD_POSITION, positions, tokens, ropes[i].positions);
        if (!outcome.code) angles[i] = look_up(&ropes[i], positions, tokens, rows);
    }
    if (!outcome.code)
        outcome = check_layers(model->layers, count, caches, batches, groups, angles,
                               model->rope_count, tokens);
    if (outcome.code) return outcome;
    decode_matrix(model->embedding, ids, tokens, TYPE_F32, x, threads);
    for (int64_t i = 0; i < tokens * hidden; i++) x[i] *= scale;
    return done_if(all_layers(model->layers, count, caches, batches, angles, x, tokens, logits, x,
                              threads) &&
                   read_out(model->readout, x, tokens, x, logits, threads));
}

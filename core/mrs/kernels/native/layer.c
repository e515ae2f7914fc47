/* The halves of a decoder's layer, each in one call: between its steps nothing goes back to the
 * interpreter, whose own memory the weights have driven out of the caches. */
#include "layer.h"

#include "products.h"

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

/* Queries, keys and values of x's norm, the first two turned by the angles (tokens, pairs).
 * `normed` holds as many numbers as x. False when memory is missing. */
EXPORT bool mrs_project(const Projection *p, const float *x, const float *cos, const float *sin,
                        int64_t tokens, float *normed, float *q, float *k, float *v, int threads) {
    const Path *path = p->q->path;
    Factor factors[] = {{p->q, q, NULL}, {p->k, k, NULL}, {p->v, v, NULL}};
    mrs_rms_norm(path, x, p->norm, (float)p->eps, tokens, p->q->columns, normed, threads);
    if (!multiply_each(factors, 3, normed, TYPE_F32, tokens, threads)) return false;
    mrs_rotate(path, q, cos, sin, tokens, p->q->rows / p->head_dim, p->head_dim, p->pairs,
               p->interleaved != 0, q, threads);
    mrs_rotate(path, k, cos, sin, tokens, p->k->rows / p->head_dim, p->head_dim, p->pairs,
               p->interleaved != 0, k, threads);
    return true;
}

/* x + back(attention), both (tokens, hidden). False when memory is missing. */
EXPORT bool mrs_attend_back(const Attending *a, const Matrix *back, const float *x, float *out,
                            int threads) {
    Factor factor = {back, out, x};
    return mrs_attend(back->path, a, threads) &&
           multiply_each(&factor, 1, a->out, TYPE_F32, a->tokens, threads);
}

/* What the halves of a layer are made of, and the small steps that they call. */
#ifndef MRS_LAYER_H
#define MRS_LAYER_H

#include "products.h"
#include "steps.h"

typedef struct {
    const float *norm; /* weights of a root-mean-square norm */
    double eps;
    int64_t activation;
    const Matrix *gate, *up, *down;
} FeedForward;

typedef struct {
    const float *norm;
    double eps;
    const Matrix *q, *k, *v, *back;
    const float *q_bias, *k_bias, *v_bias; /* or NULL */
    const float *q_norm, *k_norm;          /* of each head, or NULL */
    double head_eps;
    int64_t head_dim, pairs, interleaved;
    int64_t window;        /* 0: none */
    double scale, softcap; /* softcap 0: none */
} AttentionHalf;

/* By which new tokens turn, (tokens, pairs). */
typedef struct {
    const float *cos, *sin;
} Angles;

typedef struct {
    const AttentionHalf *attention;
    const FeedForward *feed_forward;
    int64_t rope, group; /* its numbers among the angles and the batches of a step */
} Layer;

void mrs_rms_norm(const Path *path, const float *x, const float *weight, float eps, int64_t rows,
                  int64_t size, float *out, int threads);
void mrs_gate(const Path *path, int activation, float *gate, const float *up, int64_t size,
              int threads);
void mrs_rotate(const Path *path, const float *x, const float *cos, const float *sin,
                int64_t tokens, int64_t heads, int64_t head_dim, int64_t pairs, int interleaved,
                float *out, int threads);
bool mrs_attend(const Path *path, const Attending *a, int threads);
void mrs_write_kv(const KVCache *cache, const Batch *batch, const float *keys, const float *values,
                  int64_t kv_heads, int threads);

#endif

/* The two blocks of a decoder layer, attention and feed-forward, and what follows the last one. */
#ifndef MRS_LAYER_H
#define MRS_LAYER_H

#include "attention/attention.h"
#include "elementwise.h"
#include "gemm/products.h"

typedef struct {
    const float *norm; /* (hidden): weights of a root-mean-square norm */
    double eps;
    int64_t activation;
    const Matrix *gate, *up, *down;
} FeedForward;

typedef struct {
    const float *norm; /* (hidden) */
    double eps;
    const Matrix *q, *k, *v, *back;        /* back: the output projection */
    const float *q_bias, *k_bias, *v_bias; /* or NULL */
    const float *q_norm, *k_norm;          /* (head_dim), or NULL */
    double head_eps;
    int64_t head_dim, pairs, interleaved;
    int64_t window;        /* 0: none */
    double scale, softcap; /* softcap 0: none */
} AttentionBlock;

typedef struct {
    const float *norm; /* (hidden) */
    double eps;
    const Matrix *head; /* (vocabulary, hidden) */
} Readout;

/* Of the rotary embedding of the new tokens: (tokens, pairs) each. */
typedef struct {
    const float *cos, *sin;
    int64_t tokens;
} Angles;

typedef struct {
    const AttentionBlock *attention;
    const FeedForward *feed_forward;
    int64_t rope, group; /* indices into the angles and the batches of a step */
} Layer;

/* cos and sin of the rotary embedding by position: (positions, pairs) each. */
typedef struct {
    const float *cos, *sin;
    int64_t pairs, positions;
} RopeTable;

#define MAX_ROPES 4 /* of a model that is computed in one call */

typedef struct {
    const Matrix *embedding; /* (vocabulary, hidden) */
    double embedding_scale;
    const Layer *layers;
    int64_t layer_count, rope_count;
    const Readout *readout;
} Model;

#endif

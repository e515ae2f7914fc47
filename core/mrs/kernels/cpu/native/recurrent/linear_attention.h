/* Linear attention by a delta rule: a whole token mixer. */
#ifndef MRS_LINEAR_ATTENTION_H
#define MRS_LINEAR_ATTENTION_H

#include "gemm/products.h"
#include "recurrent/state_batch.h"

/* Decays are those of heads, from x; or with `step_in` those of keys, by way of `inner` values. So
 * are those of the gate with `gate_in`. */
typedef struct {
    const Matrix *q, *k, *v, *gate_in, *gate, *back; /* back: the output projection */
    const float *beta;                               /* (heads, hidden) */
    const float *step_in;              /* (inner, hidden) or NULL */
    const float *step, *step_bias;     /* (steps, hidden or inner), (steps) */
    const float *decay;                /* (heads) */
    const float *convolutions[3];      /* (channels, taps) of q, k and v */
    const float *q_length, *k_length;  /* (key_dim): weights of norms that give a length */
    const float *head_norm;            /* (value_dim) */
    double length_eps, head_eps;
    int64_t heads, key_heads, inner, taps, activation;
    bool tiled;
} LinearAttention;

#endif

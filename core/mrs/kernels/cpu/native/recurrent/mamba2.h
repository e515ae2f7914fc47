/* A selective state space with its projections, convolution and gate: a whole token mixer. */
#ifndef MRS_MAMBA2_H
#define MRS_MAMBA2_H

#include "gemm/products.h"
#include "recurrent/state_batch.h"

/* Rows of `in` are a gate, values, input and output weights of the states, and steps. */
typedef struct {
    const Matrix *in, *back; /* back: the output projection */
    const float *convolution, *convolution_bias; /* (channels, taps), (channels) or NULL */
    const float *step_bias, *decay, *skip;       /* (heads) */
    const float *norm;                           /* (values) or NULL */
    double eps, least_step, most_step;
    int64_t heads, groups, head_dim, state_dim, taps;
    bool norm_before_gate;
} Mamba2;

#endif

/* Products of float32 activations with matrices that are stored as rows of floats or halves. */
#ifndef MRS_DENSE_H
#define MRS_DENSE_H

#include "mrs.h"

/* out[t][h] = x[t][h] times the matrix of head h; all steps are in values.
 *
 * A matrix has `rows` results of `depth` products. Of its weights, either those of a result
 * (row_step > 1) or those of a depth (row_step 1) are adjacent. */
struct DenseProduct {
    const float *x; /* (tokens, heads, depth), the last contiguous */
    const void *weights;
    float *out; /* (tokens, heads, rows), contiguous */
    int64_t type, tokens, heads, depth, rows;
    int64_t x_token_step, x_head_step;
    int64_t head_step, row_step, depth_step;
};

void mrs_multiply_dense(const KernelTable *kernels, const DenseProduct *product, int threads);

#endif

/* The operations between matrix products, on rows of floats. */
#ifndef MRS_ELEMENTWISE_H
#define MRS_ELEMENTWISE_H

#include "mrs.h"

struct Rotation {
    int64_t heads, head_dim, pairs;
    bool interleaved;
};

void mrs_rms_norm(const KernelTable *kernels, const float *x, const float *weight, float eps,
                  int64_t rows, int64_t size, float *out, int threads);
void mrs_gate(const KernelTable *kernels, int activation, float *gate, const float *up,
              int64_t size, int threads);
void mrs_rotate(const KernelTable *kernels, const float *x, const float *cos, const float *sin,
                int64_t tokens, int64_t heads, int64_t head_dim, int64_t pairs, int interleaved,
                float *out, int threads);

#endif

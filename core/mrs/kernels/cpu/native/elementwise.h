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
/* What rows are normalized by: `sets` of weights and biases of `size` values, each of which may be
 * NULL, for adjacent rows in turn; from the mean on, if it is `centred`. */
typedef struct {
    const float *weight, *bias;
    float eps;
    int64_t size, sets;
    bool is_centred;
} RowNorm;

void normalize_rows(const KernelTable *kernels, const RowNorm *norm, const float *x, int64_t rows,
                    float *out, int threads);
void activate_xielu(const KernelTable *kernels, const float *parameters, float *x, int64_t size,
                    int threads);
void mrs_gate(const KernelTable *kernels, int activation, float *gate, const float *up,
              int64_t size, int threads);
/* x (rows, size) = relu(x - cut), where the cut is so many deviations above the mean of a row. */
void mrs_cut_off(float *x, int64_t rows, int64_t size, double deviations, int threads);
/* gate = at most `bound`; up = 1 + up, which is within ±bound; (size) each. */
void clamp_gates(float *gate, float *up, float bound, int64_t size);
/* Rotates the rows x (rows, heads, head_dim), the first of which is that of the token `first`, by
 * the angles of each token, or of its position if there are `positions`. */
void rotate_by(const KernelTable *kernels, const Rotation *rotation, float *x, const float *cos,
               const float *sin, const int64_t *positions, int64_t first, int64_t rows,
               int threads);

#endif

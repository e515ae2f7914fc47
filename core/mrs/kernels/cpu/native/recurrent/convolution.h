/* A causal convolution over tokens, of each channel by itself. */
#ifndef MRS_CONVOLUTION_H
#define MRS_CONVOLUTION_H

#include "mrs.h"

/* The new tokens of one sequence; rows of x and out are `x_step` and `out_step` values apart. */
struct Convolution {
    const float *x;      /* (tokens, channels) */
    const float *weight; /* (channels, taps) */
    const float *bias;   /* (channels) or NULL */
    float *recent, *out; /* (channels, taps - 1), (tokens, channels) */
    int64_t tokens, channels, taps, x_step, out_step;
    bool silu; /* of the result */
};

#define CONVOLVED_CHANNELS 64 /* of a task */
#define MAX_TAPS 8

void mrs_convolve(const KernelTable *kernels, const Convolution *convolution, int threads);

#endif

/* A causal convolution over tokens, some channels a task. */
#include "recurrent/convolution.h"

#include "runtime/threads.h"

typedef struct {
    const KernelTable *kernels;
    const Convolution *convolution;
} ConvolutionArgs;

static void convolution_task(void *data, int64_t first, int64_t end) {
    const ConvolutionArgs *args = data;
    for (int64_t task = first; task < end; task++) {
        const int64_t channel = task * CONVOLVED_CHANNELS;
        const int64_t left = args->convolution->channels - channel;
        args->kernels->convolve(args->convolution, channel, at_most(CONVOLVED_CHANNELS, left));
    }
}

/* Writes the results of all tokens, and their last inputs to `recent`. */
EXPORT void mrs_convolve(const KernelTable *kernels, const Convolution *convolution, int threads) {
    ConvolutionArgs args = {kernels, convolution};
    const int64_t values = (convolution->tokens + convolution->taps) * convolution->channels;
    const int64_t tasks = divide_up(convolution->channels, CONVOLVED_CHANNELS);
    run_tasks(threads_for(values, threads), tasks, convolution_task, &args);
}

#include "gemm/prefetch.h"

/* By measurement; other distances, or only one of the two, were slower. */
PrefetchDistance prefetch_distance = {8192, 4096, 0};

#if defined(__x86_64__)
/* AMD's processors prefetch as fast as in a plain read by themselves, if they get the line after
 * next: with the distances above products are 20 % slower, and without any those of matrices whose
 * activations fill a third of the first-level cache up to 15 %. Replies are 2 to 5 % faster if codes
 * do not pass through the third-level cache, where the interpreter's memory then stays; bf16 weights,
 * of which there are more bytes for the same work, are slower so. */
__attribute__((constructor)) static void choose_distance(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_is("amd")) prefetch_distance = (PrefetchDistance){128, 128, 128};
}
#endif

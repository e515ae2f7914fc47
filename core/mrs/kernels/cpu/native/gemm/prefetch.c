#include "gemm/prefetch.h"

/* By measurement; other distances, or only one of the two, were slower. */
PrefetchDistance prefetch_distance = {8192, 4096};

#if defined(__x86_64__)
/* AMD's processors get the line that is read next: with nothing to do for it, they prefetch as fast
 * as in a plain read by themselves, and with the distances above 20 % less. */
__attribute__((constructor)) static void choose_distance(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_is("amd")) prefetch_distance = (PrefetchDistance){0, 0};
}
#endif

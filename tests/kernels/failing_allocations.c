/* Preloaded, it lets one allocation of the native library fail. */
#include <stdatomic.h>
#include <stdlib.h>

static _Atomic long left = -1;

/* The allocation after so many more fails; a negative number: none. */
void fail_allocation(long after) { atomic_store(&left, after); }

/* Whether it has. */
int allocation_failed(void) { return atomic_load(&left) < 0; }

void *aligned_alloc(size_t alignment, size_t size) {
    void *memory = NULL;
    if (atomic_load(&left) >= 0 && atomic_fetch_sub(&left, 1) == 0) return NULL;
    return posix_memalign(&memory, alignment, size) ? NULL : memory;
}

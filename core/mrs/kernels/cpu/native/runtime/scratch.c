#include "runtime/scratch.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base.h"

static _Atomic int64_t allocated_bytes, peak_bytes;

void *scratch_alloc(int64_t size_bytes) {
    void *memory = aligned_alloc(LINE, (size_t)(divide_up(size_bytes, LINE) * LINE));
    if (!memory) return NULL;
    int64_t allocated = atomic_fetch_add(&allocated_bytes, size_bytes) + size_bytes;
    int64_t peak = atomic_load(&peak_bytes);
    while (allocated > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, allocated)) {}
    return memory;
}

void scratch_free(void *memory, int64_t size_bytes) {
    if (memory) atomic_fetch_sub(&allocated_bytes, size_bytes);
    free(memory);
}

/* The largest number of bytes allocated at the same time since the last call. */
EXPORT int64_t mrs_scratch_peak(void) { return atomic_exchange(&peak_bytes, 0); }

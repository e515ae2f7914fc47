#include "scratch.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "products.h"
#include "weights.h"

static _Atomic int64_t held_bytes, peak_bytes;

void *take_scratch(int64_t size_bytes) {
    void *memory = aligned_alloc(LINE, (size_t)(divide_up(size_bytes, LINE) * LINE));
    if (!memory) return NULL;
    int64_t held = atomic_fetch_add(&held_bytes, size_bytes) + size_bytes;
    int64_t peak = atomic_load(&peak_bytes);
    while (held > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, held)) {
    }
    return memory;
}

void give_scratch(void *memory, int64_t size_bytes) {
    if (memory) atomic_fetch_sub(&held_bytes, size_bytes);
    free(memory);
}

/* The most that was held at once since the last call. */
EXPORT int64_t mrs_scratch_peak(void) { return atomic_exchange(&peak_bytes, 0); }

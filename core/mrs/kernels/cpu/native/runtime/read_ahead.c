/* A decode step reads all weights in the same order as the last one. So each piece that a thread
 * reads is stored with the one it read after it, and while a thread waits (for the interpreter, or
 * for a step that one thread computes) it follows this order and prefetches: memory does not rest,
 * and the next products find their first weights in the caches. */
#include "runtime/read_ahead.h"

#include <stdatomic.h>

#define PREFETCH_PAGE 4096
/* Of a thread: what its caches and its share of the common one hold on most processors. */
#define MOST_BYTES (2 << 20)

/* What was read after the piece that begins at `start` the last time. Only addresses are stored,
 * since a matrix may be freed meanwhile; a prefetch of memory that is gone has no effect. Threads
 * that write here at the same time can mix entries up; the only harm is a useless prefetch. */
#define SUCCESSORS 4096
static struct {
    _Atomic(const uint8_t *) start, next;
    _Atomic int64_t next_bytes;
} successors[SUCCESSORS];

/* The piece that this thread reads or has read last; NULL: unknown. */
static _Thread_local const uint8_t *current;

#define SUCCESSOR(address) \
    (&successors[((uint64_t)(uintptr_t)(address) * 0x9e3779b97f4a7c15u) >> 32 & (SUCCESSORS - 1)])
#define PUT(variable, value) atomic_store_explicit(&(variable), value, memory_order_relaxed)
#define GET(variable) atomic_load_explicit(&(variable), memory_order_relaxed)

void note_read(const uint8_t *start, int64_t bytes) {
    if (current) {
        PUT(SUCCESSOR(current)->start, current);
        PUT(SUCCESSOR(current)->next, start);
        PUT(SUCCESSOR(current)->next_bytes, bytes);
    }
    current = start;
}

void forget_reads(void) { current = NULL; }

void read_ahead(bool (*is_over)(const void *data), const void *data) {
    int64_t left = MOST_BYTES;
    for (const uint8_t *start = current; start && left > 0;) {
        if (GET(SUCCESSOR(start)->start) != start) return;
        const int64_t bytes = at_most(GET(SUCCESSOR(start)->next_bytes), left);
        start = GET(SUCCESSOR(start)->next);
        for (int64_t page = 0; page < bytes; page += PREFETCH_PAGE) {
            if (is_over(data)) return;
            for (int64_t line = page; line < at_most(page + PREFETCH_PAGE, bytes); line += LINE)
                __builtin_prefetch(start + line);
        }
        left -= bytes;
    }
}

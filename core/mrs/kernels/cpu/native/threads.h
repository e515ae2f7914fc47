/* Work shared between threads. */
#ifndef MRS_THREADS_H
#define MRS_THREADS_H

#include "mrs.h"

typedef void (*Task)(void *data, int64_t first, int64_t end);

/* Calls task(data, first, end) for ranges that together are 0 to count, on up to `threads`
 * threads, in any order. */
void run_tasks(int threads, int64_t count, Task task, void *data);

/* Says what will be read after the next region, so that waiting workers can fetch it. */
void fetch_ahead(const uint8_t *start, int64_t bytes);

#endif

/* Sharing work between threads. */
#ifndef MRS_THREADS_H
#define MRS_THREADS_H

#include "base.h"

/* Operations on fewer values than this run on one thread: more would cost more than they save. */
#define MIN_PARALLEL_VALUES 32768

static inline int threads_for(int64_t values, int threads) {
    return values < MIN_PARALLEL_VALUES ? 1 : threads;
}

typedef void (*Task)(void *data, int64_t first, int64_t end);

/* Calls task(data, first, end) for ranges that together are 0 to count, on up to `threads` threads
 * and in any order; returns when all are done. */
void run_tasks(int threads, int64_t count, Task task, void *data);

/* Inside a task: the tasks that the calling thread takes first. */
void own_tasks(int64_t *first, int64_t *end);

#endif

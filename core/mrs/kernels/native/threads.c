/* Work shared between threads: the pool of the OpenMP runtime that torch uses, or our own. */
#include <pthread.h>
#include <stdatomic.h>

#include "mrs.h"

typedef struct {
    Task task;
    void *data;
    int64_t count;
    _Atomic int64_t next;
} Region;

static void work(void *argument) {
    Region *region = argument;
    for (;;) {
        int64_t index = atomic_fetch_add_explicit(&region->next, 1, memory_order_relaxed);
        if (index >= region->count) return;
        region->task(region->data, index);
    }
}

static void *work_thread(void *argument) {
    work(argument);
    return NULL;
}

/* Without a runtime to share, threads start and end with each region. */
static void run_on_own_threads(Region *region, int threads) {
    enum { MAX_THREADS = 256 };
    pthread_t started[MAX_THREADS];
    int count = 0;
    while (count < threads - 1 && count < MAX_THREADS)
        if (pthread_create(&started[count], NULL, work_thread, region) == 0)
            count++;
        else
            break;
    work(region);
    while (count > 0) pthread_join(started[--count], NULL);
}

void run_tasks(const Context *context, int threads, int64_t count, Task task, void *data) {
    Region region = {task, data, count, 0};
    if (threads > count) threads = (int)count;
    if (threads <= 1)
        work(&region);
    else if (context->gomp_parallel)
        context->gomp_parallel(work, &region, (unsigned)threads, 0);
    else
        run_on_own_threads(&region, threads);
}

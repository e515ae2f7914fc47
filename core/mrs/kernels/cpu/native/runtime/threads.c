/* A pool of threads that share the tasks of one call, a region.
 *
 * Threads take pieces of the range of tasks: large ones first, so that each reads long runs of
 * memory, and small ones last, so that all end together. A worker that arrives late finds the
 * region closed, and nobody waits for it; so other programs on the machine slow a region down only
 * by the pieces that its workers have already taken. (An OpenMP region ends when every thread has
 * arrived, which costs a time slice of the scheduler on a busy machine.) Between regions workers
 * spin for a while before they sleep, because in a decode step regions follow each other within
 * microseconds.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "runtime/threads.h"

#define MAX_WORKERS 255
#define SPIN_ROUNDS 10000 /* of a pause each: about 0.2 ms */
#define OPEN ((uint64_t)1 << 32)

static struct {
    /* Bit 32: a region is open. Below: how many workers are inside. Above: regions so far. */
    _Atomic uint64_t gate;
    _Atomic int64_t next, seats;
    int64_t count, shares; /* a piece is 1/shares of the tasks that are left */
    Task task;
    void *data;
    atomic_flag in_use;
    _Atomic int sleepers;
    _Atomic int workers;
    /* The memory that the next region will read; NULL: unknown. */
    _Atomic(const uint8_t *) next_read;
    _Atomic int64_t next_read_bytes;
    pthread_mutex_t lock;
    pthread_cond_t opened;
} pool = {.in_use = ATOMIC_FLAG_INIT,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .opened = PTHREAD_COND_INITIALIZER};

static void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static void work(void) {
    int64_t first = atomic_load(&pool.next);
    while (first < pool.count) {
        int64_t share = (pool.count - first) / pool.shares, end = first + (share > 1 ? share : 1);
        if (atomic_compare_exchange_weak(&pool.next, &first, end)) {
            pool.task(pool.data, first, end);
            first = atomic_load(&pool.next);
        }
    }
}

/* Whether the caller is now inside the open region. */
static bool enter(void) {
    uint64_t gate = atomic_load(&pool.gate);
    while (gate & OPEN)
        if (atomic_compare_exchange_weak(&pool.gate, &gate, gate + 1)) return true;
    return false;
}

static void sleep_until_opened(uint64_t region) {
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_add(&pool.sleepers, 1);
    while (atomic_load(&pool.gate) >> 33 == region) pthread_cond_wait(&pool.opened, &pool.lock);
    atomic_fetch_sub(&pool.sleepers, 1);
    pthread_mutex_unlock(&pool.lock);
}

/* Prefetches the memory that the next region will read into the second-level cache of this
 * processor until that region opens; each worker takes every n-th page. A prefetch of memory that
 * is freed meanwhile has no effect. */
static void prefetch_while_closed(uint64_t region, int64_t index) {
    const int64_t page = 4096;
    const uint8_t *start = atomic_load(&pool.next_read);
    int64_t bytes = atomic_load(&pool.next_read_bytes), step = page * pool.workers;
    for (int64_t offset = page * index; start && offset < bytes; offset += step) {
        if (atomic_load(&pool.gate) >> 33 != region) return;
        for (int64_t line = 0; line < page; line += 64)
            __builtin_prefetch(start + offset + line, 0, 2);
    }
}

static void *worker(void *argument) {
    const int64_t index = (intptr_t)argument;
    uint64_t region = 0;
    for (;;) {
        prefetch_while_closed(region, index);
        for (int i = 0; i < SPIN_ROUNDS && atomic_load(&pool.gate) >> 33 == region; i++)
            pause_briefly();
        if (atomic_load(&pool.gate) >> 33 == region) sleep_until_opened(region);
        region = atomic_load(&pool.gate) >> 33;
        if (!enter()) continue;
        if (atomic_fetch_sub(&pool.seats, 1) > 0) work();
        atomic_fetch_sub(&pool.gate, 1);
    }
    return NULL;
}

/* A forked process has none of its parent's threads. */
static void reset_after_fork(void) {
    pool.workers = 0;
    atomic_store(&pool.sleepers, 0);
    atomic_store(&pool.gate, 0);
    atomic_flag_clear(&pool.in_use);
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.opened, NULL);
}

static void start_workers(int wanted) {
    static bool handles_forks;
    if (!handles_forks) handles_forks = pthread_atfork(NULL, NULL, reset_after_fork) == 0;
    for (; pool.workers < wanted && pool.workers < MAX_WORKERS; pool.workers++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker, (void *)(intptr_t)pool.workers)) return;
        pthread_detach(thread);
    }
}

void hint_next_read(const uint8_t *start, int64_t bytes) {
    atomic_store(&pool.next_read, start);
    atomic_store(&pool.next_read_bytes, bytes);
}

void run_tasks(int threads, int64_t count, Task task, void *data) {
    if (threads > count) threads = (int)count;
    /* If another thread uses the pool, this one works alone instead of waiting. */
    if (threads <= 1 || atomic_flag_test_and_set(&pool.in_use)) {
        if (count > 0) task(data, 0, count);
        return;
    }
    start_workers(threads - 1);
    pool.task = task;
    pool.data = data;
    pool.count = count;
    pool.shares = 2 * threads;
    atomic_store(&pool.seats, threads - 1);
    atomic_store(&pool.next, 0);
    atomic_fetch_add(&pool.gate, 2 * OPEN + OPEN); /* one more region, and open */
    if (atomic_load(&pool.sleepers)) {
        pthread_mutex_lock(&pool.lock);
        pthread_cond_broadcast(&pool.opened);
        pthread_mutex_unlock(&pool.lock);
    }
    work();
    uint64_t gate = atomic_fetch_and(&pool.gate, ~OPEN) & ~OPEN;
    for (int i = 0; gate & (OPEN - 1); i++) {
        if (i < 1000) pause_briefly(); else sched_yield();
        gate = atomic_load(&pool.gate);
    }
    atomic_flag_clear(&pool.in_use);
}

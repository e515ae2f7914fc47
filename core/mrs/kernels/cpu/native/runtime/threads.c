/* A pool of threads that share the tasks of one call, a region.
 *
 * Each thread has a range of the tasks, of which it takes pieces in order, so that it reads one long
 * run of memory: large pieces first and small ones last. Then it takes pieces of the other ranges,
 * so that all threads end together. A worker that arrives late finds the region closed, and nobody
 * waits for it; so other programs on the machine slow a region down only by the pieces that its
 * workers have already taken. (An OpenMP region ends when every thread has arrived, which costs a
 * time slice of the scheduler on a busy machine.) Between regions workers spin for a while before
 * they sleep, because in a decode step regions follow each other within microseconds.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "runtime/read_ahead.h"
#include "runtime/threads.h"

#define MAX_WORKERS 255
/* Of a pause each: 0.5 to 1.5 ms, longer than the interpreter needs between two decode steps. */
#define SPIN_ROUNDS 30000
#define OPEN ((uint64_t)1 << 32)

static struct {
    /* Bit 32: a region is open. Below: how many workers are inside. Above: regions so far. */
    _Atomic uint64_t gate;
    int64_t count, threads;
    Task task;
    void *data;
    atomic_flag in_use;
    _Atomic int sleepers;
    _Atomic int workers;
    pthread_mutex_t lock;
    pthread_cond_t opened;
} pool = {.in_use = ATOMIC_FLAG_INIT,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .opened = PTHREAD_COND_INITIALIZER};

/* The first task of each thread's range that nobody has taken, each in a line of its own. */
static struct {
    _Alignas(LINE) _Atomic int64_t next;
} ranges[MAX_WORKERS + 1];

/* The tasks that this thread takes first in the region it is in. */
static _Thread_local int64_t own_first, own_end;

static void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/* Where the range of a thread begins. */
static int64_t range_start(int64_t thread) { return pool.count * thread / pool.threads; }

/* Takes pieces of a range until none is left: a quarter of the rest each. */
static void work_on(int64_t thread) {
    const int64_t last = range_start(thread + 1);
    int64_t first = atomic_load(&ranges[thread].next);
    while (first < last) {
        const int64_t end = first + divide_up(last - first, 4);
        if (atomic_compare_exchange_weak(&ranges[thread].next, &first, end)) {
            pool.task(pool.data, first, end);
            first = atomic_load(&ranges[thread].next);
        }
    }
}

/* The thread's own range comes first. */
static void work(int64_t thread) {
    own_first = range_start(thread);
    own_end = range_start(thread + 1);
    for (int64_t i = 0; i < pool.threads; i++) work_on((thread + i) % pool.threads);
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

static bool has_opened(const void *region) {
    return atomic_load(&pool.gate) >> 33 != *(const uint64_t *)region;
}

static void *worker(void *argument) {
    const int64_t thread = (intptr_t)argument;
    uint64_t region = 0;
    for (;;) {
        read_ahead(has_opened, &region);
        for (int i = 0; i < SPIN_ROUNDS && !has_opened(&region); i++)
            pause_briefly();
        if (!has_opened(&region)) sleep_until_opened(region);
        region = atomic_load(&pool.gate) >> 33;
        if (!enter()) continue;
        if (thread < pool.threads) work(thread);
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
        if (pthread_create(&thread, NULL, worker, (void *)(intptr_t)(pool.workers + 1))) return;
        pthread_detach(thread);
    }
}

void own_tasks(int64_t *first, int64_t *end) {
    *first = own_first;
    *end = own_end;
}

void run_tasks(int threads, int64_t count, Task task, void *data) {
    if (threads > count) threads = (int)count;
    if (threads > MAX_WORKERS + 1) threads = MAX_WORKERS + 1;
    /* If another thread uses the pool, this one works alone instead of waiting. */
    if (threads <= 1 || atomic_flag_test_and_set(&pool.in_use)) {
        own_first = 0;
        own_end = count;
        if (count > 0) task(data, 0, count);
        return;
    }
    start_workers(threads - 1);
    pool.task = task;
    pool.data = data;
    pool.count = count;
    pool.threads = threads;
    for (int64_t i = 0; i < threads; i++) atomic_store(&ranges[i].next, range_start(i));
    atomic_fetch_add(&pool.gate, 2 * OPEN + OPEN); /* one more region, and open */
    if (atomic_load(&pool.sleepers)) {
        pthread_mutex_lock(&pool.lock);
        pthread_cond_broadcast(&pool.opened);
        pthread_mutex_unlock(&pool.lock);
    }
    work(0);
    uint64_t gate = atomic_fetch_and(&pool.gate, ~OPEN) & ~OPEN;
    for (int i = 0; gate & (OPEN - 1); i++) {
        if (i < 1000) pause_briefly(); else sched_yield();
        gate = atomic_load(&pool.gate);
    }
    atomic_flag_clear(&pool.in_use);
}

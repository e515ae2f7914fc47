/* What Python calls for the small steps between matrix products. */
#include "layer.h"

#include <string.h>

#include "half.h"
#include "scratch.h"
#include "threads.h"

/* Below this many numbers a region of several threads costs more than it saves. */
#define LEAST_NUMBERS 32768

static int threads_for(int64_t numbers, int threads) {
    return numbers < LEAST_NUMBERS ? 1 : threads;
}

typedef struct {
    const Path *path;
    const float *x, *weight;
    float *out, eps;
    int64_t size;
} Normalizing;

static void normalize_task(void *data, int64_t first, int64_t end) {
    const Normalizing *n = data;
    for (int64_t row = first; row < end; row++)
        n->path->normalize(n->x + row * n->size, n->weight, n->eps, n->size,
                           n->out + row * n->size);
}

/* Root-mean-square norm of `rows` rows of `size` numbers. */
EXPORT void mrs_rms_norm(const Path *path, const float *x, const float *weight, float eps,
                         int64_t rows, int64_t size, float *out, int threads) {
    Normalizing normalizing = {path, x, weight, out, eps, size};
    run_tasks(threads_for(rows * size, threads), rows, normalize_task, &normalizing);
}

#define ACTIVATE_NUMBERS 1024

typedef struct {
    const Path *path;
    Activation activation;
    float *gate;
    const float *up;
    int64_t size;
} Activating;

static void activate_task(void *data, int64_t first, int64_t end) {
    const Activating *a = data;
    int64_t start = first * ACTIVATE_NUMBERS, stop = end * ACTIVATE_NUMBERS;
    stop = stop < a->size ? stop : a->size;
    a->path->activate(a->activation, a->gate + start, a->up + start, stop - start);
}

/* gate = activation(gate) * up, `size` numbers. */
EXPORT void mrs_gate(const Path *path, int activation, float *gate, const float *up, int64_t size,
                     int threads) {
    Activating activating = {path, (Activation)activation, gate, up, size};
    int64_t tasks = (size + ACTIVATE_NUMBERS - 1) / ACTIVATE_NUMBERS;
    run_tasks(threads_for(size, threads), tasks, activate_task, &activating);
}

typedef struct {
    const Path *path;
    Rotation rotation;
    const float *x, *cos, *sin;
    float *out;
} Rotating;

static void rotate_task(void *data, int64_t first, int64_t end) {
    const Rotating *r = data;
    for (int64_t token = first; token < end; token++) {
        int64_t place = token * r->rotation.heads * r->rotation.head_dim;
        int64_t angle = token * r->rotation.pairs;
        r->path->rotate(&r->rotation, r->x + place, r->cos + angle, r->sin + angle,
                        r->out + place);
    }
}

/* Turns x (tokens, heads, head_dim) by the angles (tokens, pairs) of each token. */
EXPORT void mrs_rotate(const Path *path, const float *x, const float *cos, const float *sin,
                       int64_t tokens, int64_t heads, int64_t head_dim, int64_t pairs,
                       int interleaved, float *out, int threads) {
    Rotating rotating = {path, {heads, head_dim, pairs, interleaved != 0}, x, cos, sin, out};
    int used = threads_for(tokens * heads * head_dim, threads);
    run_tasks(used, tokens, rotate_task, &rotating);
}

/* Query heads that one task takes: as many as share a key's numbers in registers. */
#define TASK_HEADS 8

typedef struct {
    const Path *path;
    const Attending *attending;
    int64_t scratch_bytes; /* of a task */
    _Atomic bool failed;
} AttendingBatch;

static Queries queries_of(const Attending *a, int64_t sequence) {
    const Batch *b = a->batch;
    const int64_t row = b->query_start[sequence];
    return (Queries){a, b->block_tables + sequence * b->table_blocks, row,
                     b->query_start[sequence + 1] - row, b->context_lens[sequence]};
}

/* Query heads of a sequence's tokens that share a head of keys. */
static int64_t rows_of(const Queries *q) {
    return q->tokens * q->attending->heads / q->attending->kv_heads;
}

/* Whether queries are taken in blocks: one that is filled by half is as fast as its rows one by
 * one. */
static bool takes_rows(const Path *path, const Queries *q) {
    return q->tokens > 1 && rows_of(q) >= path->rows / 2;
}

static int64_t head_parts(const Attending *a) {
    return divide_up(a->heads / a->kv_heads, TASK_HEADS);
}

static int64_t tasks_of(const Path *path, const Queries *q) {
    const int64_t kv_heads = q->attending->kv_heads;
    if (takes_rows(path, q)) return kv_heads * divide_up(rows_of(q), path->rows);
    return kv_heads * q->tokens * head_parts(q->attending);
}

/* Some heads of one token. Tasks are numbered head by head of keys, so that what is read stays in
 * the caches. */
static void attend_one(const Path *path, const Queries *q, int64_t index, float *scores) {
    const Attending *a = q->attending;
    const int64_t parts = head_parts(a), group = a->heads / a->kv_heads;
    const int64_t token = index / parts % q->tokens, kv_head = index / parts / q->tokens;
    const int64_t part = index % parts * TASK_HEADS, row = q->row + token;
    const int64_t own = q->context - q->tokens + token, first = first_key(a, own);
    Sight sight = {.queries = q,
                   .q = a->q + row * a->heads * a->cache->keys.dim,
                   .out = a->out + row * a->heads * a->cache->values.dim,
                   .first = first,
                   .count = last_key(a, row, own) - first + 1};
    path->attend(&sight, kv_head * group + part, at_most(TASK_HEADS, group - part), scores);
}

/* A block of rows, numbered head by head of keys, too. */
static void attend_block(const Path *path, const Queries *q, int64_t index, void *room) {
    const int64_t rows = rows_of(q), blocks = divide_up(rows, path->rows);
    const int64_t row = index % blocks * path->rows;
    path->attend_rows(q, index / blocks, row, at_most(path->rows, rows - row), room);
}

/* Tasks of all sequences are numbered one sequence after another. */
static void attend_task(void *data, int64_t first, int64_t end) {
    AttendingBatch *batch = data;
    const Path *path = batch->path;
    void *scratch = take_scratch(batch->scratch_bytes);
    if (!scratch) batch->failed = true;
    const int64_t sequences = scratch ? batch->attending->batch->sequences : 0;
    for (int64_t i = 0, start = 0; i < sequences && start < end; i++) {
        const Queries q = queries_of(batch->attending, i);
        const int64_t count = tasks_of(path, &q), last = at_most(end - start, count);
        for (int64_t index = first > start ? first - start : 0; index < last; index++)
            if (takes_rows(path, &q))
                attend_block(path, &q, index, scratch);
            else
                attend_one(path, &q, index, scratch);
        start += count;
    }
    give_scratch(scratch, batch->scratch_bytes);
}

/* Attention of new tokens over a cache that holds them; false when memory is missing. */
EXPORT bool mrs_attend(const Path *path, const Attending *a, int threads) {
    AttendingBatch batch = {path, a, 0, false};
    int64_t tasks = 0, numbers = 0;
    for (int64_t i = 0; i < a->batch->sequences; i++) {
        const Queries q = queries_of(a, i);
        const int64_t keys = a->window && a->window < q.context ? a->window : q.context;
        const bool by_rows = takes_rows(path, &q);
        const int64_t bytes = by_rows ? path->row_block_bytes(a->cache)
                                      : TASK_HEADS * q.context * (int64_t)sizeof(float);
        batch.scratch_bytes = bytes > batch.scratch_bytes ? bytes : batch.scratch_bytes;
        tasks += tasks_of(path, &q);
        numbers += by_rows ? LEAST_NUMBERS
                           : q.tokens * a->kv_heads * keys *
                                 (a->cache->keys.dim + a->cache->values.dim);
    }
    run_tasks(threads_for(numbers, threads), tasks, attend_task, &batch);
    return !batch.failed;
}

typedef struct {
    const KVCache *cache;
    const Batch *batch;
    const float *keys, *values; /* NULL: they are a part of the keys */
    int64_t kv_heads;
} Writing;

static void write_token(const Cached *cached, const KVCache *cache, int64_t slot, const float *x,
                        int64_t kv_heads) {
    const int64_t inside = slot & (((int64_t)1 << cache->block_shift) - 1), dim = cached->dim;
    int64_t place = (slot >> cache->block_shift) * cached->block_stride +
                    inside * cached->token_stride;
    for (int64_t h = 0; h < kv_heads; h++, place += cached->head_stride, x += dim) {
        uint16_t *half = (uint16_t *)cached->data + place;
        if (cache->type == TYPE_F32)
            memcpy((float *)cached->data + place, x, (size_t)dim * sizeof(float));
        else if (cache->type == TYPE_F16)
            for (int64_t i = 0; i < dim; i++) half[i] = half_of_float(x[i]);
        else
            for (int64_t i = 0; i < dim; i++) half[i] = bf16_of_float(x[i]);
    }
}

static void write_task(void *data, int64_t first, int64_t end) {
    const Writing *w = data;
    const Cached *keys = &w->cache->keys, *values = &w->cache->values;
    for (int64_t token = first; token < end; token++) {
        const int64_t slot = w->batch->slot_mapping[token];
        write_token(keys, w->cache, slot, w->keys + token * w->kv_heads * keys->dim, w->kv_heads);
        if (w->values)
            write_token(values, w->cache, slot, w->values + token * w->kv_heads * values->dim,
                        w->kv_heads);
    }
}

/* Writes keys and values (tokens, kv_heads, dim) of new tokens to their slots. */
EXPORT void mrs_write_kv(const KVCache *cache, const Batch *batch, const float *keys,
                         const float *values, int64_t kv_heads, int threads) {
    Writing writing = {cache, batch, keys, values, kv_heads};
    const int64_t numbers = batch->tokens * kv_heads * (cache->keys.dim + cache->values.dim);
    run_tasks(threads_for(numbers, threads), batch->tokens, write_task, &writing);
}

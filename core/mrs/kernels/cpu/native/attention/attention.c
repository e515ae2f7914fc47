/* Attention over a paged KV cache, and writing to it. */
#include "attention/attention.h"

#include <string.h>

#include "bounds.h"
#include "half.h"
#include "runtime/scratch.h"
#include "runtime/threads.h"

typedef struct {
    const KernelTable *kernels;
    const AttentionParams *params;
    int64_t scratch_bytes; /* of a task */
    _Atomic bool failed;
} AttentionArgs;

static SequenceQueries queries_of(const AttentionParams *a, int64_t sequence) {
    const Batch *b = a->batch;
    const int64_t row = b->query_start[sequence];
    return (SequenceQueries){a, b->block_tables + sequence * b->table_blocks, row,
                             b->query_start[sequence + 1] - row, b->context_lens[sequence]};
}

/* Rows of a sequence: the query heads of all its tokens that share a key head. */
static int64_t rows_of(const SequenceQueries *q) {
    return q->tokens * q->params->heads / q->params->kv_heads;
}

/* Whether its tokens attend to chosen keys, and not to all. */
static bool has_choice(const SequenceQueries *q) {
    return q->params->chosen && q->context > q->params->most_chosen;
}

/* Most rows of a block. */
static int64_t block_rows(const KernelTable *kernels, const SequenceQueries *q) {
    return is_quantized(q->params->cache) ? CODE_ROWS : kernels->rows;
}

/* Whether rows are computed in blocks: quantized keys always, others if there are enough rows, since
 * half a block is as fast as its rows one by one. */
static bool has_row_blocks(const KernelTable *kernels, const SequenceQueries *q) {
    if (is_quantized(q->params->cache)) return true;
    return q->tokens > 1 && rows_of(q) >= kernels->rows / 2;
}

static bool uses_row_blocks(const KernelTable *kernels, const SequenceQueries *q) {
    return !has_choice(q) && has_row_blocks(kernels, q);
}

/* Workspace of some heads of one token: their queries, and their scores of a step. */
static int64_t task_heads_bytes(const KVCache *cache) {
    return TASK_HEADS * (cache->keys.dim + STEP_KEYS) * (int64_t)sizeof(float);
}

static int64_t block_bytes_of(const KernelTable *kernels, const KVCache *cache) {
    return is_quantized(cache) ? kernels->code_rows_bytes(cache) : kernels->row_block_bytes(cache);
}

static int64_t head_parts(const AttentionParams *a) {
    return divide_up(a->heads / a->kv_heads, TASK_HEADS);
}

static int64_t tasks_of(const KernelTable *kernels, const SequenceQueries *q) {
    const int64_t kv_heads = q->params->kv_heads;
    if (uses_row_blocks(kernels, q)) return kv_heads * divide_up(rows_of(q), block_rows(kernels, q));
    return kv_heads * q->tokens * head_parts(q->params);
}

/* Some heads of one token. Tasks are numbered by key head first, so that its keys and values stay
 * in the caches. */
static void attend_token(const KernelTable *kernels, const SequenceQueries *q, int64_t index,
                         float *workspace) {
    const AttentionParams *a = q->params;
    const int64_t parts = head_parts(a), group = a->heads / a->kv_heads;
    const int64_t token = index / parts % q->tokens, kv_head = index / parts / q->tokens;
    const int64_t part = index % parts * TASK_HEADS, row = q->row + token;
    const int64_t own = q->context - q->tokens + token;
    Query query = {.queries = q,
                   .q = a->q + row * a->heads * a->cache->keys.dim,
                   .out = a->out + row * a->heads * a->cache->values.dim,
                   .first = first_key(a, own),
                   .last = last_key(a, row, own)};
    if (has_choice(q)) {
        query.chosen = a->chosen + row * a->most_chosen;
        query.first = 0;
        query.last = at_most(query.last, a->most_chosen - 1);
    }
    kernels->attend(&query, kv_head * group + part, at_most(TASK_HEADS, group - part), workspace);
}

/* A block of rows, in the same order. */
static void attend_block(const KernelTable *kernels, const SequenceQueries *q, int64_t index,
                         void *workspace) {
    const int64_t rows = rows_of(q), most = block_rows(kernels, q);
    const int64_t blocks = divide_up(rows, most), row = index % blocks * most;
    (is_quantized(q->params->cache) ? kernels->attend_codes : kernels->attend_rows)(
        q, index / blocks, row, at_most(most, rows - row), workspace);
}

/* Tasks of all sequences are numbered one sequence after another. */
static void attend_task(void *data, int64_t first, int64_t end) {
    AttentionArgs *args = data;
    const KernelTable *kernels = args->kernels;
    void *scratch = scratch_alloc(args->scratch_bytes);
    if (!scratch) args->failed = true;
    const int64_t sequences = scratch ? args->params->batch->sequences : 0;
    for (int64_t i = 0, start = 0; i < sequences && start < end; i++) {
        const SequenceQueries q = queries_of(args->params, i);
        const int64_t count = tasks_of(kernels, &q), last = at_most(end - start, count);
        for (int64_t index = first > start ? first - start : 0; index < last; index++)
            if (uses_row_blocks(kernels, &q))
                attend_block(kernels, &q, index, scratch);
            else
                attend_token(kernels, &q, index, scratch);
        start += count;
    }
    scratch_free(scratch, args->scratch_bytes);
}

bool attend_batch(const KernelTable *kernels, const AttentionParams *a, int threads) {
    AttentionArgs args = {kernels, a, 0, false};
    int64_t tasks = 0, values = 0;
    for (int64_t i = 0; i < a->batch->sequences; i++) {
        const SequenceQueries q = queries_of(a, i);
        const int64_t most = has_choice(&q) ? a->most_chosen : a->window;
        const int64_t keys = most && most < q.context ? most : q.context;
        const bool by_rows = q.tokens > 1 && uses_row_blocks(kernels, &q);
        /* As much with a choice as without one: the plan knows only the longest sequence. */
        const int64_t bytes = has_row_blocks(kernels, &q) ? block_bytes_of(kernels, a->cache)
                                                          : task_heads_bytes(a->cache);
        args.scratch_bytes = bytes > args.scratch_bytes ? bytes : args.scratch_bytes;
        tasks += tasks_of(kernels, &q);
        values += by_rows
                      ? MIN_PARALLEL_VALUES
                      : q.tokens * a->kv_heads * keys * (a->cache->keys.dim + a->cache->values.dim);
    }
    run_tasks(threads_for(values, threads), tasks, attend_task, &args);
    return !args.failed;
}

/* Attention of new tokens whose keys and values are already in the cache. */
EXPORT Outcome mrs_attend(const KernelTable *kernels, const AttentionParams *a, int threads) {
    Outcome outcome = check_rows(a->batch, a->tokens);
    if (!outcome.code) outcome = check_reads(a->cache, a->batch);
    if (!outcome.code && a->chosen) outcome = check_chosen(a->batch, a->chosen, a->most_chosen);
    return outcome.code ? outcome : done_if(attend_batch(kernels, a, threads));
}

typedef struct {
    const KernelTable *kernels;
    const KVCache *cache;
    const Batch *batch;
    const float *keys, *values; /* values NULL: they are a part of the keys */
    int64_t kv_heads;
} WriteArgs;

static void write_token(const WriteArgs *w, bool are_values, int64_t slot, const float *x) {
    const KVCache *cache = w->cache;
    const CacheTensor *cached = are_values ? &cache->values : &cache->keys;
    const CacheTensor *rests = are_values ? &cache->value_rests : &cache->key_rests;
    const int64_t shift = cache->block_shift, block = slot >> shift, dim = cached->dim;
    const int64_t inside = slot & (((int64_t)1 << shift) - 1);
    int64_t offset = block * cached->block_stride + inside * cached->token_stride;
    for (int64_t h = 0; h < w->kv_heads; h++, offset += cached->head_stride, x += dim) {
        uint16_t *half = (uint16_t *)cached->data + offset;
        if (cached->type > TYPE_F16) /* its token stride is 0 */
            w->kernels->write_codes(cached, are_values, inside, x, (uint8_t *)cached->data + offset,
                                    rest_plane(cache, rests, block, h));
        else if (cached->type == TYPE_F32)
            memcpy((float *)cached->data + offset, x, (size_t)dim * sizeof(float));
        else if (cached->type == TYPE_F16)
            w->kernels->to_f16(x, dim, half);
        else
            for (int64_t i = 0; i < dim; i++) half[i] = bf16_of_float(x[i]);
    }
}

static void write_task(void *data, int64_t first, int64_t end) {
    const WriteArgs *w = data;
    const int64_t key_dim = w->cache->keys.dim, value_dim = w->cache->values.dim;
    for (int64_t token = first; token < end; token++) {
        const int64_t slot = w->batch->slot_mapping[token], row = token * w->kv_heads;
        write_token(w, false, slot, w->keys + row * key_dim);
        if (w->values) write_token(w, true, slot, w->values + row * value_dim);
    }
}

void write_batch(const KernelTable *kernels, const KVCache *cache, const Batch *batch,
                 const float *keys, const float *values, int64_t kv_heads, int threads) {
    WriteArgs args = {kernels, cache, batch, keys, values, kv_heads};
    const int64_t count = batch->tokens * kv_heads * (cache->keys.dim + cache->values.dim);
    run_tasks(threads_for(count, threads), batch->tokens, write_task, &args);
}

/* Writes keys and values (tokens, kv_heads, dim) of new tokens to their slots. */
EXPORT Outcome mrs_write_kv(const KernelTable *kernels, const KVCache *cache, const Batch *batch,
                            const float *keys, const float *values, int64_t tokens,
                            int64_t kv_heads, int threads) {
    Outcome outcome = check_rows(batch, tokens);
    if (!outcome.code) outcome = check_writes(cache, batch);
    if (!outcome.code) write_batch(kernels, cache, batch, keys, values, kv_heads, threads);
    return outcome;
}

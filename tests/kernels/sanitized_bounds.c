/* Attention for steps with right and wrong numbers; compiled with sanitizers and run by
 * test_sanitized_bounds.py and tests/sanitize.py. Arrays end where what may be read of them does. */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "isa/lanes_portable.h"

#include "attention/attend_rows.inc.h"
#include "bounds.h"

Outcome mrs_attend(const KernelTable *, const AttentionParams *, int);
Outcome mrs_write_kv(const KernelTable *, const KVCache *, const Batch *, const float *,
                     const float *, int64_t, int64_t, int);

enum { HEADS = 4, KV_HEADS = 2, KEY_DIM = 8, VALUE_DIM = 4, SEQUENCES = 3, CALLERS = 3 };
enum { STARTS, LENGTHS, TABLES, SLOTS, ENDS, CHOSEN, KINDS };

static const KernelTable kernels = {.to_f16 = to_f16,
                                    .attend = attend,
                                    .rows = ROWS,
                                    .row_block_bytes = row_block_bytes,
                                    .attend_rows = attend_rows};

typedef struct {
    uint64_t chance;
    int64_t rounds, refused[KINDS], wrong;
} Caller;

static int64_t draw(Caller *c, int64_t count) {
    c->chance = c->chance * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((c->chance >> 33) % (uint64_t)count);
}

static void *made(int64_t count, size_t bytes) {
    void *memory = calloc((size_t)count, bytes);
    if (!memory) abort();
    return memory;
}

static CacheTensor tensor(int64_t type, int64_t blocks, int64_t shift, int64_t dim) {
    const int64_t size = (int64_t)1 << shift;
    return (CacheTensor){.data = made(blocks * KV_HEADS * size * dim, sizeof(float)),
                         .type = type,
                         .dim = dim,
                         .block_stride = KV_HEADS * size * dim,
                         .head_stride = size * dim,
                         .token_stride = dim};
}

/* Sequences with some tokens before, and new ones; blocks are given from the last to the first. */
static Batch right_batch(Caller *c, KVCache *cache, bool has_ends) {
    const int64_t count = 1 + draw(c, SEQUENCES), size = (int64_t)1 << cache->block_shift;
    int64_t news[SEQUENCES], lengths[SEQUENCES];
    Batch b = {.sequences = count};
    for (int64_t i = 0; i < count; i++) {
        news[i] = draw(c, 2) ? 1 : 1 + draw(c, 40);
        lengths[i] = news[i] + draw(c, 90);
        b.tokens += news[i];
        const int64_t blocks = divide_up(lengths[i], size);
        b.table_blocks = blocks > b.table_blocks ? blocks : b.table_blocks;
        cache->blocks += blocks;
    }
    int32_t *starts = made(count + 1, 4), *contexts = made(count, 4);
    int32_t *tables = made(count * b.table_blocks, 4);
    int64_t *slots = made(b.tokens, 8), *ends = has_ends ? made(b.tokens, 8) : NULL;
    for (int64_t i = 0, free_block = cache->blocks, row = 0; i < count; i++) {
        contexts[i] = (int32_t)lengths[i];
        for (int64_t n = 0; n < divide_up(lengths[i], size); n++)
            tables[i * b.table_blocks + n] = (int32_t)--free_block;
        for (int64_t own = lengths[i] - news[i]; own < lengths[i]; own++, row++) {
            slots[row] = tables[i * b.table_blocks + own / size] * size + own % size;
            if (ends) ends[row] = own + draw(c, lengths[i] - own);
        }
        starts[i + 1] = (int32_t)row;
    }
    b.query_start = starts;
    b.context_lens = contexts;
    b.block_tables = tables;
    b.slot_mapping = slots;
    b.attention_ends = ends;
    return b;
}

/* What each token has chosen (tokens, most): nothing where it attends to all. */
static int32_t *right_choice(const Batch *b, int64_t most) {
    int32_t *chosen = made(b->tokens * most, 4);
    for (int64_t i = 0; i < b->tokens * most; i++) chosen[i] = -1;
    for (int64_t i = 0; i < b->sequences; i++) {
        const int64_t length = b->context_lens[i], end = b->query_start[i + 1];
        for (int64_t row = b->query_start[i]; row < end && length > most; row++) {
            const int64_t own = length - end + row;
            const int64_t count = 1 + (b->attention_ends ? b->attention_ends[row] : own);
            for (int64_t n = 0; n < most && n < count; n++)
                chosen[row * most + n] = (int32_t)(count < most ? n : n * count / most);
        }
    }
    return chosen;
}

static int64_t wrong_number(Caller *c, int64_t old, int64_t count) {
    const int64_t numbers[] = {-1, count, count + 1, old + 1, old - 1, old + count, -old, INT32_MAX,
                               INT32_MIN, INT64_MAX, INT64_MIN};
    return numbers[draw(c, sizeof numbers / sizeof *numbers)];
}

static int32_t narrow(int64_t number) {
    return number > INT32_MAX ? INT32_MAX : number < INT32_MIN ? INT32_MIN : (int32_t)number;
}

/* Changes one number of a kind. */
static void spoil(Caller *c, int kind, const Batch *b, int32_t *chosen, int64_t blocks,
                  int64_t size) {
    const int64_t sequence = draw(c, b->sequences), token = draw(c, b->tokens);
    int32_t *start = (int32_t *)b->query_start + draw(c, b->sequences + 1);
    int32_t *length = (int32_t *)b->context_lens + sequence;
    int32_t *block = (int32_t *)b->block_tables + draw(c, b->sequences * b->table_blocks);
    int64_t *slot = (int64_t *)b->slot_mapping + token, *end = (int64_t *)b->attention_ends + token;
    switch (kind) {
    case STARTS: *start = narrow(wrong_number(c, *start, b->tokens + 1)); break;
    case LENGTHS: *length = narrow(wrong_number(c, *length, b->table_blocks * size + 1)); break;
    case TABLES: *block = narrow(wrong_number(c, *block, blocks)); break;
    case CHOSEN: *chosen = narrow(wrong_number(c, *chosen, b->context_lens[sequence])); break;
    case SLOTS: *slot = wrong_number(c, *slot, blocks * size); break;
    default: *end = wrong_number(c, *end, b->context_lens[0]);
    }
}

static bool is_done(Caller *c, const KVCache *cache, const Batch *b, int64_t window,
                    const int32_t *chosen, int64_t most, const float *q, const float *k,
                    const float *v, float *out) {
    const AttentionParams params = {.q = q, .out = out, .cache = cache, .batch = b,
                                    .tokens = b->tokens, .heads = HEADS, .kv_heads = KV_HEADS,
                                    .window = window, .scale = 0.3, .chosen = chosen,
                                    .most_chosen = most};
    const Outcome wrote = mrs_write_kv(&kernels, cache, b, k, v, b->tokens, KV_HEADS, 3);
    const Outcome read = mrs_attend(&kernels, &params, 3);
    c->wrong += wrote.code == NO_MEMORY || read.code == NO_MEMORY;
    return !wrote.code && !read.code;
}

static void try_step(Caller *c) {
    const bool has_ends = draw(c, 2);
    const int64_t type = draw(c, 3);
    KVCache cache = {.block_shift = 2 + draw(c, 5)};
    Batch b = right_batch(c, &cache, has_ends);
    cache.keys = tensor(type, cache.blocks, cache.block_shift, KEY_DIM);
    cache.values = tensor(type, cache.blocks, cache.block_shift, VALUE_DIM);
    float *q = made(b.tokens * HEADS * KEY_DIM, 4), *k = made(b.tokens * KV_HEADS * KEY_DIM, 4);
    float *v = made(b.tokens * KV_HEADS * VALUE_DIM, 4), *out = made(b.tokens * HEADS * VALUE_DIM, 4);
    const int64_t window = draw(c, 2) ? 1 + draw(c, 20) : 0;
    const int64_t most = draw(c, 2) ? 1 + draw(c, 20) : 0;
    int32_t *chosen = most ? right_choice(&b, most) : NULL;
    c->wrong += !is_done(c, &cache, &b, window, chosen, most, q, k, v, out);
    const int kind = most ? CHOSEN : (int)draw(c, has_ends ? CHOSEN : ENDS);
    int32_t *some = most ? chosen + draw(c, b.tokens * most) : NULL;
    spoil(c, kind, &b, some, cache.blocks, (int64_t)1 << cache.block_shift);
    c->refused[kind] += !is_done(c, &cache, &b, window, chosen, most, q, k, v, out);
    void *const all[] = {cache.keys.data, cache.values.data, q, k, v, out, (void *)b.query_start,
                         (void *)b.context_lens, (void *)b.block_tables, (void *)b.slot_mapping,
                         (void *)b.attention_ends, chosen};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static void *call(void *caller) {
    Caller *c = caller;
    for (int64_t i = 0; i < c->rounds; i++) try_step(c);
    return NULL;
}

/* The argument is how many steps each of the callers tries. Prints what was refused of each kind,
 * in the order above; fails if a right step was. */
int main(int count, char **arguments) {
    Caller callers[CALLERS] = {{0}};
    pthread_t threads[CALLERS];
    int64_t wrong = 0;
    for (int i = 0; i < CALLERS; i++) {
        callers[i].chance = (uint64_t)i;
        callers[i].rounds = count > 1 ? atoi(arguments[1]) : 1000;
        pthread_create(&threads[i], NULL, call, &callers[i]);
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(threads[i], NULL);
        wrong += callers[i].wrong;
    }
    for (int kind = 0; kind < KINDS; kind++) {
        int64_t refused = 0;
        for (int i = 0; i < CALLERS; i++) refused += callers[i].refused[kind];
        printf("%lld ", (long long)refused);
    }
    printf("\n");
    return wrong != 0;
}

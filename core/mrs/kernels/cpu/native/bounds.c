#include "bounds.h"

static const Outcome fine = {DONE, 0, 0};

static Outcome bad(Code code, int64_t value, int64_t count) {
    return (Outcome){code, value, count};
}

Outcome check_all(Code code, const int64_t *values, int64_t size, int64_t count) {
    for (int64_t i = 0; i < size; i++)
        if (values[i] < 0 || values[i] >= count) return bad(code, values[i], count);
    return fine;
}

/* `starts` (sequences + 1) ascend from 0 to `rows`. */
static Outcome check_starts(const int32_t *starts, int64_t sequences, int64_t rows) {
    if (starts[0] != 0) return bad(BAD_START, starts[0], rows);
    for (int64_t i = 0; i < sequences; i++)
        if (starts[i + 1] < starts[i] || starts[i + 1] > rows)
            return bad(BAD_START, starts[i + 1], rows);
    return starts[sequences] == rows ? fine : bad(BAD_START, starts[sequences], rows);
}

/* A block has rests in a slot of the cache; or none, if it `may_lack` them. */
static Outcome check_rests(const KVCache *cache, int64_t block, bool may_lack) {
    const int32_t slot = cache->rest_slots[block];
    return slot < cache->slots && slot >= (may_lack ? -1 : 0) ? fine
                                                              : bad(BAD_REST, slot, cache->slots);
}

/* The blocks of the first `length` tokens of a sequence. If they are quantized, those of its last
 * `tokens`, which are new, have rests. */
static Outcome check_blocks(const KVCache *cache, const int32_t *blocks, int64_t tokens,
                            int64_t length) {
    const int64_t used = length ? ((length - 1) >> cache->block_shift) + 1 : 0;
    Outcome outcome = fine;
    for (int64_t i = 0; i < used && !outcome.code; i++) {
        if (blocks[i] < 0 || blocks[i] >= cache->blocks)
            return bad(BAD_BLOCK, blocks[i], cache->blocks);
        const bool is_old = (i + 1) << cache->block_shift <= length - tokens;
        if (is_quantized(cache)) outcome = check_rests(cache, blocks[i], is_old);
    }
    return outcome;
}

/* Tokens attend to themselves or later ones, where `ends` says so; the first one of these may be
 * before the sequence, if all of them attend to everything. */
static Outcome check_ends(const int64_t *ends, int64_t tokens, int64_t length) {
    for (int64_t i = 0, own = length - tokens; i < tokens; i++, own++)
        if (ends[i] < 0 || ends[i] < own || ends[i] >= length)
            return bad(BAD_END, ends[i], length);
    return fine;
}

static Outcome check_sequence(const KVCache *cache, const Batch *batch, int64_t sequence) {
    const int64_t row = batch->query_start[sequence];
    const int64_t tokens = batch->query_start[sequence + 1] - row;
    const int64_t length = batch->context_lens[sequence];
    const int64_t least = batch->attention_ends ? 0 : tokens;
    if (length < least || (length && (length - 1) >> cache->block_shift >= batch->table_blocks))
        return bad(BAD_LENGTH, length, batch->table_blocks << cache->block_shift);
    const int32_t *blocks = batch->block_tables + sequence * batch->table_blocks;
    const Outcome outcome = check_blocks(cache, blocks, tokens, length);
    if (outcome.code || !batch->attention_ends) return outcome;
    return check_ends(batch->attention_ends + row, tokens, length);
}

Outcome check_rows(const Batch *batch, int64_t rows) {
    return batch->tokens == rows ? fine : bad(BAD_TOKENS, batch->tokens, rows);
}

Outcome check_reads(const KVCache *cache, const Batch *batch) {
    Outcome outcome = check_starts(batch->query_start, batch->sequences, batch->tokens);
    for (int64_t i = 0; !outcome.code && i < batch->sequences; i++)
        outcome = check_sequence(cache, batch, i);
    return outcome;
}

/* The choice of one token: as many positions as there are, or `most`. */
static Outcome check_choice(const int32_t *chosen, int64_t most, int64_t last) {
    const int64_t count = last < most ? last + 1 : most;
    for (int64_t i = 0; i < count; i++)
        if (chosen[i] < 0 || chosen[i] > last) return bad(BAD_CHOICE, chosen[i], last + 1);
    return fine;
}

Outcome check_chosen(const Batch *batch, const int32_t *chosen, int64_t most) {
    Outcome outcome = fine;
    for (int64_t i = 0; i < batch->sequences; i++) {
        const int64_t length = batch->context_lens[i], end = batch->query_start[i + 1];
        if (length <= most) continue;
        for (int64_t row = batch->query_start[i]; row < end && !outcome.code; row++) {
            const int64_t own = length - end + row;
            const int64_t last = batch->attention_ends ? batch->attention_ends[row] : own;
            outcome = check_choice(chosen + row * most, most, last);
        }
    }
    return outcome;
}

Outcome check_writes(const KVCache *cache, const Batch *batch) {
    Outcome outcome = check_all(BAD_SLOT, batch->slot_mapping, batch->tokens,
                                cache->blocks << cache->block_shift);
    for (int64_t i = 0; i < batch->tokens && is_quantized(cache) && !outcome.code; i++)
        outcome = check_rests(cache, batch->slot_mapping[i] >> cache->block_shift, false);
    return outcome;
}

Outcome check_step(const KVCache *cache, const Batch *batch, int64_t rows) {
    Outcome outcome = check_rows(batch, rows);
    if (!outcome.code) outcome = check_writes(cache, batch);
    return outcome.code ? outcome : check_reads(cache, batch);
}

Outcome check_states(const StateBatch *batch, int64_t rows) {
    return check_starts(batch->starts, batch->sequences, rows);
}

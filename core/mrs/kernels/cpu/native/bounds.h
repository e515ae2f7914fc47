/* What a step names is compared with what there is: once for each exported call, before it computes
 * or writes anything. The kernels behind the call trust these numbers. */
#ifndef MRS_BOUNDS_H
#define MRS_BOUNDS_H

#include "attention/attention.h"
#include "recurrent/state_batch.h"

/* The order is that of `_NAMED` in core/mrs/kernels/cpu/outcome.py. */
typedef enum {
    DONE, NO_MEMORY, BAD_ROW, BAD_POSITION, BAD_BLOCK, BAD_SLOT, BAD_START, BAD_LENGTH, BAD_END,
    BAD_TOKENS, BAD_CHOICE, BAD_REST
} Code;

/* What became of a call: if its code is a bad number, there is no `value` among `count`, and
 * nothing was done. */
typedef struct {
    int64_t code, value, count;
} Outcome;

static inline Outcome done_if(bool is_allocated) {
    return (Outcome){.code = is_allocated ? DONE : NO_MEMORY};
}

/* All `values` (size) are from 0 to count-1. */
Outcome check_all(Code code, const int64_t *values, int64_t size, int64_t count);

/* A batch has as many tokens as the tensors of a call have rows. */
Outcome check_rows(const Batch *batch, int64_t rows);

/* Attention of `batch` reads keys that its sequences have, in blocks that the cache has. */
Outcome check_reads(const KVCache *cache, const Batch *batch);

/* In sequences of more tokens than `most`, what each token has chosen (tokens, most) is not after
 * the last position that it attends to. The batch is checked before. */
Outcome check_chosen(const Batch *batch, const int32_t *chosen, int64_t most);

/* The slots of new tokens are in the cache. */
Outcome check_writes(const KVCache *cache, const Batch *batch);

/* All of these for a call that writes new tokens and then attends to them. */
Outcome check_step(const KVCache *cache, const Batch *batch, int64_t rows);

/* Sequences with states share the `rows` of a call. */
Outcome check_states(const StateBatch *batch, int64_t rows);

#endif

/* What the small steps between matrix products are given. */
#ifndef MRS_STEPS_H
#define MRS_STEPS_H

#include <math.h>

#include "mrs.h"

struct Rotation {
    int64_t heads, head_dim, pairs;
    bool interleaved;
};

/* Keys or values of one layer in blocks of tokens, and how many numbers lie between two blocks,
 * heads and tokens. A token's `dim` numbers lie next to each other. */
typedef struct {
    void *data;
    int64_t dim, block_stride, head_stride, token_stride;
} Cached;

/* The keys and values of one layer, of all sequences. A block has 1 << block_shift tokens. */
struct KVCache {
    Cached keys, values;
    int64_t type, block_shift;
};

/* The new tokens of some sequences, one sequence after another, and where their keys are. */
typedef struct {
    int64_t sequences, tokens, table_blocks;
    const int32_t *query_start;  /* (sequences + 1): the first new token of each, and the end */
    const int32_t *context_lens; /* (sequences): all tokens of each, the new ones included */
    const int32_t *block_tables; /* (sequences, table_blocks): the blocks of each, in order */
    const int64_t *slot_mapping; /* (tokens): block * block tokens + place in it */
    /* (tokens): the last position of its sequence that each attends to, or NULL: its own */
    const int64_t *attention_ends;
} Batch;

/* Causal attention of the new tokens over the cached ones of their sequences, each to no more than
 * `window` tokens (0: all before it). q and out are (tokens, heads, dim) floats. */
struct Attending {
    const float *q;
    float *out;
    const KVCache *cache;
    const Batch *batch;
    const float *sinks; /* a score without a value for each head, or NULL */
    int64_t heads, kv_heads, window;
    double scale, softcap; /* softcap 0: none */
};

/* The new tokens of one sequence. */
struct Queries {
    const Attending *attending;
    const int32_t *blocks;
    int64_t row, tokens, context; /* its first row of the batch; all its tokens */
};

/* One query, and the keys that it attends to. */
struct Sight {
    const Queries *queries;
    const float *q; /* (heads, key dim) */
    float *out;     /* (heads, value dim) */
    int64_t first, count;
};

/* Where the numbers of a token begin. */
static inline int64_t cached_place(const Cached *cached, const int32_t *blocks, int64_t shift,
                                   int64_t kv_head, int64_t position) {
    const int64_t inside = position & (((int64_t)1 << shift) - 1);
    return blocks[position >> shift] * cached->block_stride + kv_head * cached->head_stride +
           inside * cached->token_stride;
}

/* How many tokens from `position` on lie in the same block, `count` at most. */
static inline int64_t tokens_in_block(int64_t shift, int64_t position, int64_t count) {
    const int64_t size = (int64_t)1 << shift, left = size - (position & (size - 1));
    return left < count ? left : count;
}

/* What a query may see: those up to the end, or of its window. */
static inline int64_t first_key(const Attending *a, int64_t own) {
    return a->window && own >= a->window ? own - a->window + 1 : 0;
}
static inline int64_t last_key(const Attending *a, int64_t row, int64_t own) {
    return a->batch->attention_ends ? a->batch->attention_ends[row] : own;
}

#endif

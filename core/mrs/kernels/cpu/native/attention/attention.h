/* Attention over a paged KV cache. */
#ifndef MRS_ATTENTION_H
#define MRS_ATTENTION_H

#include "mrs.h"

#define TASK_HEADS 8 /* query heads of a task of one token: as many as share a key in registers */
#define STEP_KEYS 64 /* keys of a step; see attention/arithmetic.inc.h */
#define STEP_SHIFT 6
#define CODE_ROWS 32     /* rows of a task over quantized keys; see attention/attend_codes.inc.h */
#define MOST_ROTATED 256 /* values that one Hadamard matrix rotates */
#define REST_FACTOR 256.0f /* of what codes leave, lest its scales in float16 be too small */

/* The types of keys and values: those of `Type`, and formats with codes. The order is that of
 * `CACHE_TYPES` in core/mrs/kernels/native_structs.py. */
enum { CACHE_Q8_0 = TYPE_F16 + 1, CACHE_Q4_0 };

/* Keys or values of one layer, (blocks, kv_heads, block tokens, dim), with the strides of the
 * first three dimensions in values; the last is contiguous. Of quantized ones a plane is
 * contiguous, and strides are in bytes. */
struct CacheTensor {
    void *data;
    int64_t type, dim, block_stride, head_stride, token_stride;
};

/* The keys and values of one layer, of all sequences. A block has 1 << block_shift tokens. Both are
 * quantized or of one type.
 *
 * Quantized ones are in blocks of STEP_KEYS tokens. Some blocks also have the rest of each row: what
 * codes leave of it, times REST_FACTOR, in Q8_0. It is in their slot, -1 for none. A token attends
 * to codes and rests in its own block and later ones and, if `first_is_whole`, in the first of its
 * sequence; to codes alone in others. */
struct KVCache {
    CacheTensor keys, values;
    int64_t block_shift, blocks;
    CacheTensor key_rests, value_rests; /* (slots, kv_heads, STEP_KEYS, dim) */
    const int32_t *rest_slots;          /* (blocks) */
    int64_t slots, first_is_whole;
};

static inline bool is_quantized(const KVCache *cache) { return cache->keys.type > TYPE_F16; }

/* The rests of one key head in the slot of a block. */
static inline uint8_t *rest_plane(const KVCache *cache, const CacheTensor *rests, int64_t block,
                                  int64_t kv_head) {
    return (uint8_t *)rests->data + cache->rest_slots[block] * rests->block_stride +
           kv_head * rests->head_stride;
}

/* The new tokens of some sequences, one sequence after another, and where their keys are. */
typedef struct {
    int64_t sequences, table_blocks, tokens;
    const int32_t *query_start;  /* (sequences + 1): the first new token of each, and the end */
    const int32_t *context_lens; /* (sequences): all tokens of each, including the new ones */
    const int32_t *block_tables; /* (sequences, table_blocks): the blocks of each, in order */
    const int64_t *slot_mapping; /* (tokens): block * block tokens + index in the block */
    /* (tokens): the last position of its sequence that each attends to, or NULL: its own */
    const int64_t *attention_ends;
} Batch;

/* Causal attention of the new tokens over the cached ones of their sequences. */
typedef struct {
    const float *q; /* (tokens, heads, key dim) */
    float *out;     /* (tokens, heads, value dim) */
    const KVCache *cache;
    const Batch *batch;
    const float *sinks; /* (heads): a score without a value; or NULL */
    int64_t tokens, heads, kv_heads;
    int64_t window;        /* tokens that each attends to, itself included; 0: all */
    double scale, softcap; /* softcap 0: none */
    /* (tokens, most_chosen): the positions that each token attends to, in ascending order, in
     * sequences of more tokens than that; NULL: all */
    const int32_t *chosen;
    int64_t most_chosen;
} AttentionParams;

/* The new tokens of one sequence. */
struct SequenceQueries {
    const AttentionParams *params;
    const int32_t *blocks;        /* its block table */
    int64_t row, tokens, context; /* its first row of the batch, new tokens, all tokens */
};

/* One token, and the range of keys that it attends to. */
struct Query {
    const SequenceQueries *queries;
    const float *q; /* (heads, key dim) */
    float *out;     /* (heads, value dim) */
    int64_t first, last;
    const int32_t *chosen; /* the positions of the keys `first` to `last`, or NULL: these */
};

/* Index of a token's first value. `position` is that in the sequence of this block table. */
static inline int64_t cache_offset(const CacheTensor *tensor, const int32_t *blocks, int64_t shift,
                                   int64_t kv_head, int64_t position) {
    const int64_t inside = position & (((int64_t)1 << shift) - 1);
    return blocks[position >> shift] * tensor->block_stride + kv_head * tensor->head_stride +
           inside * tensor->token_stride;
}

/* How many of `count` tokens from `position` on are in the same block. */
static inline int64_t tokens_in_block(int64_t shift, int64_t position, int64_t count) {
    const int64_t size = (int64_t)1 << shift, left = size - (position & (size - 1));
    return left < count ? left : count;
}

/* The range of positions that the token at position `own`, in row `row`, attends to. */
static inline int64_t first_key(const AttentionParams *a, int64_t own) {
    return a->window && own >= a->window ? own - a->window + 1 : 0;
}
static inline int64_t last_key(const AttentionParams *a, int64_t row, int64_t own) {
    return a->batch->attention_ends ? a->batch->attention_ends[row] : own;
}

/* Chooses for each new token the keys with the best scores, as many as `AttentionParams` may have.
 * The score of a key is the sum over heads of weight * max(query . key, 0). */
typedef struct {
    AttentionParams index; /* queries, keys and batch; it has no `out` */
    const float *weights;  /* (tokens, heads) */
    int32_t *chosen;       /* (tokens, most_chosen) */
} Choice;

/* For numbers that are checked; see bounds.h. Attention returns false if memory is missing. */
bool choose_keys(const KernelTable *kernels, const Choice *choice, int threads);
bool attend_batch(const KernelTable *kernels, const AttentionParams *a, int threads);
void write_batch(const KernelTable *kernels, const KVCache *cache, const Batch *batch,
                 const float *keys, const float *values, int64_t kv_heads, int threads);

#endif

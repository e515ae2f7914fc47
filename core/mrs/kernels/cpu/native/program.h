/* A list of operations on the values of a layer, of several layers or of a whole model. A value has
 * one row of floats for each token. */
#ifndef MRS_PROGRAM_H
#define MRS_PROGRAM_H

#include "attention/attention.h"
#include "elementwise.h"
#include "experts.h"
#include "gemm/products.h"
#include "recurrent/state_batch.h"

/* Where a value is: the residual stream; the arena, for all rows; the arena after that, for the rows
 * of a piece; the results; or what a step gives. The order is that of core/mrs/graph/program.py. */
typedef enum { STREAM, KEPT, PIECE, RESULT, GIVEN } Space;

typedef struct {
    int64_t space, offset, width; /* offset: floats before it for each row of its space */
} Place;

/* What `NativeProgram` of core/mrs/model/native_program.py makes of a layer's operations. */
typedef enum {
    PROJECT,   /* outs = x or its norm times the matrices, plus `added` */
    NORMALIZE, /* out = the norm of x, of runs of `size` values */
    ADD_BIAS,  /* x += vector */
    ROTATE,    /* the heads of x */
    CLAMP,     /* x to what is from `least` to factor */
    WRITE,     /* keys x and values y, to the cache, or x to that of an indexer */
    ATTEND,    /* out = the attention of the queries x, to the keys y if these are chosen */
    ACTIVATE,  /* x = activation(x) * y, or activation(x); both clamped unless factor < 0 */
    ADD,       /* x += y */
    SCALE,     /* x *= factor */
    EMBED,     /* x = the embeddings of the tokens */
    ROUTE,     /* outs = the choice of experts for x, and room: scores, ranks, normed */
    MIX,       /* outs = the sum of the experts of x that y chose, and room: rows, hidden, order */
    WEIGH,     /* x *= the sigmoid of y times vector; outs = room for that */
    SPLIT,     /* outs = the parts of each of `heads` runs of x, one after another */
    MULTIPLY,  /* x *= y, each value of y by as many of x as there are more of these */
    SCALE_EACH, /* x *= vector, each value of it by `size` of x */
    DENSE,     /* out = each of `heads` runs of x times its transposed small matrix, in `vector` */
    CONVOLVE,  /* x, of `size` taps, whose channels begin at `offset` of the states' */
    DELTA_RULE, /* out = what the queries x read of states that the keys y update */
    STATE_SPACE, /* out = what the inputs x read of states that they update */
    XIELU,     /* x, by the four parameters `vector` */
    JOIN,      /* out = `heads` runs, of each of x and then of y, or of `vector` for all rows; y
                * may have one for all runs */
    CUT_OFF,   /* x to what of it is more than so many (factor) deviations above its mean */
    CHOOSE     /* out = the best keys for the indexer's queries x, whose heads have weights y */
} Kind;

#define MAX_PARTS 5 /* of a split value */

/* Values are numbers of places; -1: none. What a kind does not name is not used. */
typedef struct {
    int64_t kind, x, y, added, normed;
    int64_t outs[MAX_PARTS];
    const Matrix *matrices[MAX_OPERANDS];
    const float *vector; /* weights of a norm, a convolution or a small matrix, a bias, or sinks */
    double eps, factor, softcap;
    int64_t count, size, activation, heads, kv_heads, window, interleaved;
    const Routing *routing;
    const Experts *experts;
    int64_t others[3];   /* values, logarithms of decays and strengths of a delta rule; weights of
                          * inputs and outputs of a state space, and how long its tokens last */
    const float *bias;   /* of a norm or a convolution; how a state space skips it */
    double least;
    int64_t offset, sets, is_centred; /* sets: of weights of a norm */
    int64_t type, is_transposed;      /* of small matrices */
    int64_t is_index;                 /* whether the cache is an indexer's */
} Operation;

/* Operations up to `end`, from those of the stretch before; `piece_rows` rows at a time at most. */
typedef struct {
    int64_t end, piece_rows;
} Stretch;

typedef struct {
    const KernelTable *kernels;
    const Place *places;
    const Operation *operations;
    const Stretch *stretches;
    int64_t stretch_count, kept_floats; /* of the arena, for each row */
} Program;

/* cos and sin of the rotary embedding, (rows, pairs) each: of the new tokens, or of all positions if
 * there are `positions` of the new tokens. */
typedef struct {
    const float *cos, *sin;
    const int64_t *positions; /* (tokens), or NULL */
    int64_t pairs, rows;
} Angles;

/* One pass of new tokens. Caches, batches, angles, states and given values are those of each
 * program; all batches have the same tokens. */
typedef struct {
    int64_t tokens;
    float *stream, *arena, *result;
    const int64_t *ids; /* (tokens), or NULL */
    const KVCache *const *caches;
    const Batch *const *batches;
    const Angles *const *angles;
    const StateBatch *const *states;
    float *const *given;
    const KVCache *const *index_caches; /* with the slots and blocks of `batches` */
} Step;

#endif

/* A list of operations on the values of a layer, of several layers or of a whole model. A value has
 * one row of floats for each token. */
#ifndef MRS_PROGRAM_H
#define MRS_PROGRAM_H

#include "attention/attention.h"
#include "elementwise.h"
#include "experts.h"
#include "gemm/products.h"

/* Where a value is: the residual stream; the arena, for all rows; the arena after that, for the rows
 * of a piece; or the results. The order is that of core/mrs/graph/program.py. */
typedef enum { STREAM, KEPT, PIECE, RESULT } Space;

typedef struct {
    int64_t space, offset, width; /* offset: floats before it for each row of its space */
} Place;

/* The order is that of core/mrs/model/native_program.py. */
typedef enum {
    PROJECT,   /* outs = x or its norm times the matrices, plus `added` */
    NORMALIZE, /* out = the norm of x, of runs of `size` values */
    ADD_BIAS,  /* x += vector */
    ROTATE,    /* the heads of x */
    CLAMP,     /* to ±factor */
    WRITE,     /* keys x and values y, to the cache */
    ATTEND,    /* out = the attention of the queries x */
    ACTIVATE,  /* x = activation(x) * y, or activation(x); both clamped unless factor < 0 */
    ADD,       /* x += y */
    SCALE,     /* x *= factor */
    EMBED,     /* x = the embeddings of the tokens */
    ROUTE,     /* outs = the choice of experts for x, and room: scores, ranks, normed */
    MIX,       /* outs = the sum of the experts of x that y chose, and room: rows, hidden, order */
    WEIGH      /* x *= the sigmoid of y times vector; outs = room for that */
} Kind;

/* Values are numbers of places; -1: none. What a kind does not name is not used. */
typedef struct {
    int64_t kind, x, y, added, normed;
    int64_t outs[MAX_OPERANDS];
    const Matrix *matrices[MAX_OPERANDS];
    const float *vector; /* weights of a norm, a bias, or sinks */
    double eps, factor, softcap;
    int64_t count, size, activation, heads, kv_heads, window, interleaved;
    const Routing *routing;
    const Experts *experts;
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

/* One pass of new tokens. Caches, batches and angles are those of each program; all batches have the
 * same tokens. */
typedef struct {
    int64_t tokens;
    float *stream, *arena, *result;
    const int64_t *ids; /* (tokens), or NULL */
    const KVCache *const *caches;
    const Batch *const *batches;
    const Angles *const *angles;
} Step;

#endif

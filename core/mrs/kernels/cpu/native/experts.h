/* Mixtures of experts: which experts compute a token, and the weighted sum of what they make. */
#ifndef MRS_EXPERTS_H
#define MRS_EXPERTS_H

#include "gemm/products.h"

/* How the scores of a linear map become weights. The order is that of `Router.scoring`. */
typedef enum { BY_SOFTMAX, BY_SIGMOID, ONE_BY_ONE } Scoring;

/* How a token's experts are chosen: by the softmax or the sigmoid of a linear map, or one by one,
 * each with its softmax over those left whose score differs by at most 2 * jitter times the larger
 * of the two. The structs of this file are those of core/mrs/kernels/cpu/experts.py. */
typedef struct {
    const float *weight;                           /* (experts, hidden) */
    const float *bias, *correction, *expert_scale; /* (experts), or NULL */
    const float *input_norm;                       /* of x (hidden), or NULL */
    int64_t experts, hidden, top_k, scoring;
    int64_t groups, top_groups, group_experts; /* a group counts by so many of its best scores */
    int64_t normalizes;                        /* divide the weights by their sum */
    double scale, eps, jitter;
} Routing;

/* choice (tokens, 2 * top_k): the numbers of the experts of each token of x (tokens, hidden), no
 * two of them equal, as int32, and then their weights. The rest is room: scores (tokens, experts),
 * and ranks (tokens, experts), with room for the scores of one group and of all groups after each
 * token's if only some groups are chosen from, and normed (tokens, hidden) if x is normed. */
void mrs_route(const KernelTable *kernels, const Routing *routing, const float *x, int64_t tokens,
               float *scores, float *ranks, float *normed, float *choice, int threads);

/* Brings the weights of the expert turns[turn] of a mixture into memory, which its matrices then
 * point to, until the next turn. `turns` (count) are the experts that have tokens, by number; at
 * turn 0, the first, they may be put in another order if `takes_any_order`. Returns false if it
 * cannot. */
typedef bool (*Fetch)(int64_t layer, int32_t *turns, int64_t count, int64_t turn,
                      bool takes_any_order);

/* The MLPs of a mixture, from `width` values to as many. */
typedef struct {
    const Matrix *const *matrices; /* gate, up and down of each expert; all gates may be NULL */
    const float *const *biases;    /* of these, or NULL */
    int64_t count, top_k, width, intermediate, activation;
    int64_t weighs_input; /* instead of the output */
    double bound;         /* of clamped gates, as for `clamp_gates`; negative: they are not */
    int64_t fetch, layer; /* the address of a Fetch and what it is called with, or 0: all weights
                           * are in memory */
    void *room;           /* of a Fetch: turns (count), and values of any number of tokens, which
                           * are added up once all experts have computed */
    int64_t room_bytes;
} Experts;

/* What a mixture computes for some tokens, and room: rows (tokens, width), hidden (tokens,
 * intermediate) for the ups and, if there are, the gates, and order (tokens * top_k + experts). */
typedef struct {
    const float *x, *choice; /* (tokens, width), and as of `mrs_route` */
    float *out;              /* (tokens, width) */
    float *rows, *hidden;
    int32_t *order;
    int64_t tokens;
} Mixture;

/* Adds up in the order of the experts' numbers. Returns false if memory for products is missing,
 * or weights cannot be fetched. */
bool sum_experts(const KernelTable *kernels, const Experts *experts, const Mixture *mixture,
                 int threads);

/* x (rows, width) *= the sigmoid of y (rows, depth) times the vector `weight`; `gate` (rows) is
 * room. */
void weigh_rows(const KernelTable *kernels, float *x, int64_t width, const float *y, int64_t depth,
                const float *weight, float *gate, int64_t rows, int threads);

#endif

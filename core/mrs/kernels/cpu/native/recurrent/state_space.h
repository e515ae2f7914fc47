/* The recurrence of a selective state space (Mamba 2, and Mamba 1 with heads of one value). */
#ifndef MRS_STATE_SPACE_H
#define MRS_STATE_SPACE_H

#include "mrs.h"

/* The new tokens of one sequence. Tokens of x, b and c are `x_step`, `b_step` and `c_step` values
 * apart; the heads of a group are adjacent. */
struct StateSpace {
    const float *x, *b, *c;    /* (tokens, heads, head_dim), (tokens, groups, state_dim) twice */
    const float *times;        /* (tokens, heads): how long each token lasts */
    const float *decay, *skip; /* (heads, decays), (heads) */
    float *state, *out;        /* (heads, head_dim, state_dim), (tokens, heads, head_dim) */
    int64_t tokens, heads, groups, head_dim, state_dim;
    int64_t x_step, b_step, c_step;
    int64_t decays; /* of a head: one, or one for each of state_dim values */
};

#define STATE_ROWS 32 /* of a task: they stay in the first-level cache */

void mrs_state_space(const KernelTable *kernels, const StateSpace *space, int threads);

#endif

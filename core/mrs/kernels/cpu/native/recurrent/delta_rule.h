/* The gated delta rule of linear attention. */
#ifndef MRS_DELTA_RULE_H
#define MRS_DELTA_RULE_H

#include "mrs.h"

/* The new tokens of one sequence; all arrays are contiguous. */
struct DeltaRule {
    const float *q, *k, *v; /* (tokens, key_heads, key_dim) twice, (tokens, heads, value_dim) */
    const float *log_decay, *beta;  /* (tokens, heads) */
    float *state, *out;             /* (heads, key_dim, value_dim), (tokens, heads, value_dim) */
    int64_t tokens, heads, key_heads, key_dim, value_dim;
    bool tiled; /* head i reads key head i % key_heads, or else i / (heads / key_heads) */
};

#define STATE_COLUMNS 32 /* of a task: those of all keys stay in the first-level cache */

/* With a decay of each head; or of each key: `log_decay` is (tokens, heads, key_dim). Both update
 * the state with all tokens and write what each reads of it. They return false if memory is
 * missing. */
bool run_delta_rule(const KernelTable *kernels, const DeltaRule *rule, int threads);
bool run_key_delta_rule(const KernelTable *kernels, const DeltaRule *rule, int threads);

#endif

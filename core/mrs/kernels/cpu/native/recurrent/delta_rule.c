/* The gated delta rule of linear attention, token by token. */
#include "recurrent/delta_rule.h"

#include "runtime/scratch.h"
#include "runtime/threads.h"

typedef struct {
    const KernelTable *kernels;
    const DeltaRule *rule;
    _Atomic bool failed;
} DeltaArgs;

static int64_t state_bytes(const DeltaRule *rule) {
    return rule->key_dim * STATE_COLUMNS * (int64_t)sizeof(float);
}

/* Tasks are numbered by head first. */
static void delta_task(void *data, int64_t first, int64_t end) {
    DeltaArgs *args = data;
    const DeltaRule *rule = args->rule;
    const int64_t parts = divide_up(rule->value_dim, STATE_COLUMNS);
    float *state = scratch_alloc(state_bytes(rule));
    if (!state) args->failed = true;
    for (int64_t task = first; state && task < end; task++)
        args->kernels->delta_rule(rule, task / parts, task % parts * STATE_COLUMNS, state);
    scratch_free(state, state_bytes(rule));
}

/* Updates the state with all tokens and writes what each reads of it. Returns false if memory is
 * missing. */
EXPORT bool mrs_delta_rule(const KernelTable *kernels, const DeltaRule *rule, int threads) {
    DeltaArgs args = {kernels, rule, false};
    const int64_t tasks = rule->heads * divide_up(rule->value_dim, STATE_COLUMNS);
    const int64_t values = rule->tokens * rule->heads * rule->key_dim * rule->value_dim;
    run_tasks(threads_for(values, threads), tasks, delta_task, &args);
    return !args.failed;
}

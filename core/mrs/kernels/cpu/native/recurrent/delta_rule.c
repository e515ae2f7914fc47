/* The gated delta rule of linear attention, token by token. */
#include "recurrent/delta_rule.h"

#include "bounds.h"
#include "runtime/scratch.h"
#include "runtime/threads.h"

typedef struct {
    void (*kernel)(const DeltaRule *rule, int64_t head, int64_t column, float *workspace);
    const DeltaRule *rule;
    int64_t workspace_bytes;
    _Atomic bool failed;
} DeltaArgs;

/* Tasks are numbered by head first. */
static void delta_task(void *data, int64_t first, int64_t end) {
    DeltaArgs *args = data;
    const DeltaRule *rule = args->rule;
    const int64_t parts = divide_up(rule->value_dim, STATE_COLUMNS);
    float *workspace = scratch_alloc(args->workspace_bytes);
    if (!workspace) args->failed = true;
    for (int64_t task = first; workspace && task < end; task++)
        args->kernel(rule, task / parts, task % parts * STATE_COLUMNS, workspace);
    scratch_free(workspace, args->workspace_bytes);
}

static bool run_rule(DeltaArgs args, int threads) {
    const DeltaRule *rule = args.rule;
    const int64_t tasks = rule->heads * divide_up(rule->value_dim, STATE_COLUMNS);
    const int64_t values = rule->tokens * rule->heads * rule->key_dim * rule->value_dim;
    run_tasks(threads_for(values, threads), tasks, delta_task, &args);
    return !args.failed;
}

bool run_delta_rule(const KernelTable *kernels, const DeltaRule *rule, int threads) {
    const int64_t bytes = rule->key_dim * STATE_COLUMNS * (int64_t)sizeof(float);
    return run_rule((DeltaArgs){kernels->delta_rule, rule, bytes, false}, threads);
}

bool run_key_delta_rule(const KernelTable *kernels, const DeltaRule *rule, int threads) {
    const int64_t bytes = rule->key_dim * (STATE_COLUMNS + 2) * (int64_t)sizeof(float);
    return run_rule((DeltaArgs){kernels->key_delta_rule, rule, bytes, false}, threads);
}

EXPORT Outcome mrs_delta_rule(const KernelTable *kernels, const DeltaRule *rule, int threads) {
    return done_if(run_delta_rule(kernels, rule, threads));
}

EXPORT Outcome mrs_key_delta_rule(const KernelTable *kernels, const DeltaRule *rule, int threads) {
    return done_if(run_key_delta_rule(kernels, rule, threads));
}

/* The recurrence of a selective state space, some rows of a head's state a task. */
#include "recurrent/state_space.h"

#include "runtime/threads.h"

typedef struct {
    const KernelTable *kernels;
    const StateSpace *space;
} StateSpaceArgs;

/* Tasks are numbered by head first. */
static void state_space_task(void *data, int64_t first, int64_t end) {
    const StateSpaceArgs *args = data;
    const int64_t size = args->space->head_dim, parts = divide_up(size, STATE_ROWS);
    for (int64_t task = first; task < end; task++) {
        const int64_t row = task % parts * STATE_ROWS;
        args->kernels->state_space(args->space, task / parts, row, at_most(STATE_ROWS, size - row));
    }
}

/* Updates the state with all tokens and writes what each reads of it. */
EXPORT void mrs_state_space(const KernelTable *kernels, const StateSpace *space, int threads) {
    StateSpaceArgs args = {kernels, space};
    const int64_t rows = space->heads * space->head_dim;
    const int64_t tasks = space->heads * divide_up(space->head_dim, STATE_ROWS);
    const int64_t values = space->tokens * rows * space->state_dim;
    run_tasks(threads_for(values, threads), tasks, state_space_task, &args);
}

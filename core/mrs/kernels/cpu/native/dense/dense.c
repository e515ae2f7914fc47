/* Products with small matrices: of a router, of a gate, and those that latent attention absorbs. */
#include "dense/dense.h"

#include "runtime/threads.h"

#define TASK_ROWS 32

typedef struct {
    const KernelTable *kernels;
    const DenseProduct *product;
} DenseArgs;

/* Tasks are numbered by head first. */
static void multiply_dense_task(void *data, int64_t first, int64_t end) {
    const DenseArgs *args = data;
    const DenseProduct *p = args->product;
    const int64_t parts = divide_up(p->rows, TASK_ROWS);
    for (int64_t task = first; task < end; task++) {
        const int64_t row = task % parts * TASK_ROWS;
        args->kernels->multiply_dense(p, task / parts, row, at_most(TASK_ROWS, p->rows - row));
    }
}

EXPORT void mrs_multiply_dense(const KernelTable *kernels, const DenseProduct *product,
                               int threads) {
    DenseArgs args = {kernels, product};
    const int64_t tasks = product->heads * divide_up(product->rows, TASK_ROWS);
    const int64_t values = product->heads * product->rows * product->depth;
    run_tasks(threads_for(values, threads), tasks, multiply_dense_task, &args);
}

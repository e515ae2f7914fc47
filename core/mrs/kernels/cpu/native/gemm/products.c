/* Products of activations with packed matrices: the activations are packed once for all matrices,
 * then threads share the groups of all rows. */
#include <stdatomic.h>

#include "gemm/product.h"
#include "runtime/threads.h"

#define CACHED_BYTES (256 << 10) /* of weights */

/* Groups first to end-1 for all tokens; the weights stay in the second-level cache meanwhile. */
static void multiply_groups(const Product *p, int index, int64_t first, int64_t end) {
    const MatmulOperand *operand = &p->operands[index];
    const PackedActivations *a = &p->activations[index];
    const Matrix *m = operand->matrix;
    const int64_t bytes = group_bytes((Format)m->format, m->columns);
    const int64_t step = CACHED_BYTES / bytes > 1 ? CACHED_BYTES / bytes : 1;
    float results[MAX_TOKENS * GROUP_ROWS];
    for (; first < end; first += step)
        for (int64_t i = 0; i < a->panels; i++) {
            const uint8_t *panel = a->data + i * a->panel_bytes;
            const int64_t token = i * a->width, tokens = at_most(a->width, p->tokens - token);
            for (int64_t group = first; group < at_most(first + step, end); group++) {
                const bool exact = a->format == BF16_PAIRS && m->subnormal[group];
                m->kernels->multiply(exact ? BF16_SUBNORMAL : a->format, m->packed + group * bytes,
                                     panel, a->width, m->columns, results);
                store_results(p, operand, results, token, tokens, group * GROUP_ROWS);
            }
        }
}

/* Tasks of all matrices are numbered one matrix after another. */
static int64_t tasks_of(const Product *p, const Matrix *m) {
    return divide_up(groups_of(m), p->task_groups);
}

static void multiply_task(void *data, int64_t first, int64_t end) {
    Product *p = data;
    int64_t start = 0;
    for (int i = 0; i < p->count; start += tasks_of(p, p->operands[i++].matrix)) {
        const Matrix *m = p->operands[i].matrix;
        const int64_t group = p->task_groups * (first > start ? first - start : 0);
        const int64_t last = at_most(p->task_groups * (end - start), groups_of(m));
        if (group >= last) continue;
        if (!p->activations[i].is_prompt_gemm)
            multiply_groups(p, i, group, last);
        else if (!multiply_tiles(p, i, group, last))
            p->failed = true;
    }
}

/* Which matrix was multiplied after which one the last time: models repeat their order at every
 * token. Only addresses are stored, since a matrix may be freed meanwhile. Threads that write here
 * at the same time can mix entries up; the only harm is a useless prefetch. */
#define SUCCESSORS 4096
static struct {
    _Atomic(const uint8_t *) matrix, next;
    _Atomic int64_t next_bytes;
} successors[SUCCESSORS];
static _Thread_local const uint8_t *previous;

#define PREFETCH_BYTES (1 << 20) /* half of a usual second-level cache */

/* Stores the order, and tells waiting workers which matrix to prefetch: the part where they begin,
 * since the caller takes the first piece. */
static void hint_next_matrix(const Matrix *m, int threads) {
#define SUCCESSOR(address) (&successors[(uintptr_t)(address) / 4096 % SUCCESSORS])
#define PUT(variable, value) atomic_store_explicit(&(variable), value, memory_order_relaxed)
#define GET(variable) atomic_load_explicit(&(variable), memory_order_relaxed)
    if (previous) {
        PUT(SUCCESSOR(previous)->matrix, previous);
        PUT(SUCCESSOR(previous)->next, m->packed);
        PUT(SUCCESSOR(previous)->next_bytes,
            groups_of(m) * group_bytes((Format)m->format, m->columns));
    }
    previous = m->packed;
    const uint8_t *next = NULL;
    int64_t bytes = 0;
    if (GET(SUCCESSOR(previous)->matrix) == previous) {
        next = GET(SUCCESSOR(previous)->next);
        bytes = GET(SUCCESSOR(previous)->next_bytes);
        next += bytes / (2 * threads);
        bytes -= bytes / (2 * threads);
    }
    hint_next_read(next, at_most(bytes, PREFETCH_BYTES));
}

bool multiply_each(const MatmulOperand *operands, int count, const void *x, Type type,
                   int64_t tokens, int threads) {
    Product p = {.operands = operands, .count = count, .x = x, .type = type, .tokens = tokens};
    int64_t tasks = 0;
    p.columns = operands[0].matrix->columns;
    p.task_groups = 1;
    for (int i = 0; i < count && !p.failed; i++) {
        p.failed = !pack_activations(&p, i, threads);
        if (p.activations[i].is_prompt_gemm) p.task_groups = TILE_GROUPS;
    }
    for (int i = 0; i < count; i++) tasks += tasks_of(&p, operands[i].matrix);
    if (tokens == 1) hint_next_matrix(operands[0].matrix, threads);
    if (!p.failed) run_tasks(threads, tasks, multiply_task, &p);
    if (tokens > 1) hint_next_read(NULL, 0);
    free_activations(&p);
    return !p.failed;
}

/* out (tokens, rows) = x (tokens, columns) times the transposed matrix; both of `type`.
 * Returns false if memory for the activations is missing. */
EXPORT bool mrs_matmul(const Matrix *matrix, const void *x, int type, int64_t tokens, void *out,
                       int threads) {
    return multiply_each(&(MatmulOperand){matrix, out, NULL}, 1, x, (Type)type, tokens, threads);
}

/* Products of activations with packed matrices: the activations are packed once for all matrices,
 * then threads share the groups of all rows. */
#include <stdatomic.h>

#include "bounds.h"
#include "gemm/product.h"
#include "runtime/read_ahead.h"
#include "runtime/threads.h"

#define CACHED_BYTES (256 << 10) /* of weights */

/* A task is as many groups as the kernel for many tokens multiplies at once. */
#define TASK_GROUPS 2
#define TASK_ROWS (TASK_GROUPS * GROUP_ROWS)

/* The columns of a panel that stay in the second-level cache, for this many tasks. */
#define BLOCK_COLUMNS 2048
#define BLOCK_TASKS 8

/* results (count, size) = the sums of every two rows, those of one token. */
static void add_residuals(float *results, int64_t size, int64_t count) {
    for (int64_t t = 0; t < count; t++)
        for (int64_t i = 0; i < size; i++)
            results[t * size + i] = results[2 * t * size + i] + results[(2 * t + 1) * size + i];
}

/* How a group is multiplied. Subnormal weights of either group of a task count, because both are
 * multiplied at once with many tokens, and with few must give the same bits. */
static Format group_format(const PackedActivations *a, const Matrix *m, int64_t group) {
    const int64_t other = at_most(group ^ 1, groups_of(m) - 1);
    const bool is_exact = a->format == BF16_PAIRS && (m->subnormal[group] || m->subnormal[other]);
    return is_exact ? BF16_SUBNORMAL : a->format;
}

/* Groups first to end-1, at most those of BLOCK_TASKS tasks, for a panel of many tokens. */
static void multiply_block(const Product *p, int index, int64_t panel, int64_t first, int64_t end) {
    const MatmulOperand *operand = &p->operands[index];
    const PackedActivations *a = &p->activations[index];
    const Matrix *m = operand->matrix;
    const Format format = a->format;
    const int64_t bytes = group_bytes(format, m->columns);
    const int64_t token = panel * a->width / a->token_rows;
    const int64_t tokens = at_most(a->width / a->token_rows, p->tokens - token);
    _Alignas(LINE) float totals[BLOCK_TASKS][WIDE_TOKENS * TASK_ROWS];
    for (int64_t column = 0; column < m->columns; column += BLOCK_COLUMNS) {
        const uint8_t *group = m->packed + first * bytes + group_bytes(format, column);
        const uint8_t *x = panels_of(p, a) + panel * a->panel_bytes +
                           column / UNIT_COLUMNS * panel_unit_bytes(format, a->width);
        for (int64_t i = first; i < end; i += TASK_GROUPS, group += TASK_GROUPS * bytes) {
            float *sums = totals[(i - first) / TASK_GROUPS];
            if (column == 0) memset(sums, 0, (size_t)a->width * TASK_ROWS * sizeof *sums);
            m->kernels->multiply_wide(group_format(a, m, i), group,
                                      i + 1 < end ? group + bytes : group, x, a->width,
                                      at_most(BLOCK_COLUMNS, m->columns - column), sums);
        }
    }
    if (a->token_rows > 1)
        for (int i = 0; i < divide_up(end - first, TASK_GROUPS); i++)
            add_residuals(totals[i], TASK_ROWS, tokens);
    for (int64_t t = 0; t < tokens; t++) /* token by token, so that what is written is contiguous */
        for (int64_t i = first; i < end; i += TASK_GROUPS)
            store_results(p, operand, totals[(i - first) / TASK_GROUPS] + t * TASK_ROWS, TASK_ROWS,
                          token + t, 1, i * GROUP_ROWS);
}

/* Groups first to end-1 for a panel of few tokens. */
static void multiply_panel(const Product *p, int index, int64_t panel, int64_t first, int64_t end) {
    const MatmulOperand *operand = &p->operands[index];
    const PackedActivations *a = &p->activations[index];
    const Matrix *m = operand->matrix;
    const int64_t bytes = group_bytes((Format)m->format, m->columns);
    const int64_t token = panel * a->width / a->token_rows;
    const int64_t tokens = at_most(a->width / a->token_rows, p->tokens - token);
    float results[NARROW_TOKENS * GROUP_ROWS];
    for (int64_t group = first; group < end; group++) {
        m->kernels->multiply(group_format(a, m, group), m->packed + group * bytes,
                             panels_of(p, a) + panel * a->panel_bytes, a->width, m->columns, results);
        if (a->token_rows > 1) add_residuals(results, GROUP_ROWS, tokens);
        store_results(p, operand, results, GROUP_ROWS, token, tokens, group * GROUP_ROWS);
    }
}

/* Groups first to end-1 for all tokens; the weights stay in the second-level cache meanwhile. */
static void multiply_groups(const Product *p, int index, int64_t first, int64_t end) {
    const PackedActivations *a = &p->activations[index];
    const Matrix *m = p->operands[index].matrix;
    const int64_t cached = CACHED_BYTES / group_bytes((Format)m->format, m->columns);
    const int64_t step = a->is_wide ? BLOCK_TASKS * TASK_GROUPS : cached > 1 ? cached : 1;
    for (; first < end; first += step)
        for (int64_t panel = 0; panel < a->panels; panel++)
            (a->is_wide ? multiply_block : multiply_panel)(p, index, panel, first,
                                                           at_most(first + step, end));
}

/* Tasks of all matrices are numbered one matrix after another. */
static int64_t tasks_of(const Matrix *m) {
    return divide_up(groups_of(m), TASK_GROUPS);
}

typedef void (*Visit)(const Product *p, int index, int64_t first, int64_t end);

/* Calls visit for each matrix of which the tasks first to end-1 have groups, with these groups. */
static void visit_groups(const Product *p, int64_t first, int64_t end, Visit visit) {
    for (int i = 0; i < p->count; i++) {
        const Matrix *m = p->operands[i].matrix;
        const int64_t group = TASK_GROUPS * (first > 0 ? first : 0);
        const int64_t last = at_most(TASK_GROUPS * end, groups_of(m));
        if (group < last) visit(p, i, group, last);
        first -= tasks_of(m);
        end -= tasks_of(m);
    }
}

static void note_groups(const Product *p, int index, int64_t first, int64_t end) {
    const Matrix *m = p->operands[index].matrix;
    const int64_t bytes = group_bytes((Format)m->format, m->columns);
    note_read(m->packed + first * bytes, (end - first) * bytes);
}

/* The product of this thread's last task, with the activations that the thread reads. */
static _Thread_local Product current;

static void begin_product(const Product *p) {
    int64_t own_first, own_end;
    own_tasks(&own_first, &own_end);
    if (p->tokens > 1) forget_reads();
    else visit_groups(p, own_first, own_end, note_groups);
    current = *p;
    if (!p->packed) pack_own_activations(&current);
}

static void multiply_task(void *data, int64_t first, int64_t end) {
    const Product *p = data;
    if (p->number != current.number) begin_product(p);
    visit_groups(&current, first, end, multiply_groups);
}

static bool multiply_product(Product *p, int threads) {
    static _Atomic int64_t products;
    int64_t tasks = 0;
    p->number = atomic_fetch_add(&products, 1) + 1;
    p->columns = p->operands[0].matrix->columns;
    for (int i = 0; i < p->count; i++) tasks += tasks_of(p->operands[i].matrix);
    if (!pack_activations(p, threads)) return false;
    run_tasks(threads, tasks, multiply_task, p);
    free_activations(p);
    return true;
}

bool multiply_each(const MatmulOperand *operands, int count, const void *x, Type type,
                   int64_t tokens, int threads) {
    Product p = {.operands = operands, .count = count, .x = x, .type = type, .tokens = tokens};
    return multiply_product(&p, threads);
}

bool multiply_normed(const MatmulOperand *operands, int count, Norm norm, const float *x,
                     int64_t tokens, int threads) {
    Product p = {.operands = operands, .count = count, .x = x, .type = TYPE_F32, .tokens = tokens,
                 .norm = norm};
    return multiply_product(&p, threads);
}

/* out (tokens, rows) = x (tokens, columns) times the transposed matrix; both of `type`. */
EXPORT Outcome mrs_matmul(const Matrix *matrix, const void *x, int type, int64_t tokens, void *out,
                          int threads) {
    const MatmulOperand operand = {matrix, out, NULL};
    return done_if(multiply_each(&operand, 1, x, (Type)type, tokens, threads));
}

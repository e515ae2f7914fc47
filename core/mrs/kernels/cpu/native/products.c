/* Products of activations with packed matrices: quantized once for all of them, then one region
 * of threads over the groups of all rows. */
#include "product.h"

#include <stdatomic.h>
#include <string.h>

#include "half.h"
#include "scratch.h"
#include "threads.h"
#include "weights.h"

typedef struct {
    Product *product;
    const Laid *laid;
} Quantizing;

/* Columns of a panel that one task lays out, and how many numbers are worth several threads. */
#define PIECE_COLUMNS 512
#define LEAST_LAID 16384

static int64_t pieces_of(const Product *p) { return divide_up(p->columns, PIECE_COLUMNS); }

/* Piece after piece of panel after panel. Returns false when memory is missing. */
static bool quantize_piece(const Product *p, const Laid *laid, int64_t index) {
    const Path *path = p->factors[0].matrix->path;
    const int64_t first = index / pieces_of(p) * laid->width;
    const int64_t column = index % pieces_of(p) * PIECE_COLUMNS;
    const int64_t columns = at_most(PIECE_COLUMNS, p->columns - column);
    const int tokens = (int)at_most(laid->width, p->tokens - first);
    const int64_t converted_bytes = tokens * columns * (int64_t)sizeof(float);
    const float *rows[MAX_TOKENS];
    float *converted = NULL;
    if (p->type == TYPE_BF16 && !(converted = take_scratch(converted_bytes))) return false;
    for (int t = 0; t < tokens; t++) {
        const int64_t place = (first + t) * p->columns + column;
        rows[t] = converted ? converted + t * columns : (const float *)p->x + place;
        for (int64_t i = 0; converted && i < columns; i++)
            converted[t * columns + i] = float_of_bf16(((const uint16_t *)p->x)[place + i]);
    }
    uint8_t *panel = laid->data + index / pieces_of(p) * laid->panel_bytes;
    if (laid->is_wide)
        path->quantize_wide(rows, tokens, columns, panel + column / SPAN_COLUMNS * WIDE_SPAN_BYTES);
    else
        path->quantize(laid->format, rows, tokens, laid->width, columns,
                       panel + column / UNIT_COLUMNS * panel_unit_bytes(laid->format, laid->width));
    give_scratch(converted, converted_bytes);
    return true;
}

static void quantize_task(void *data, int64_t first, int64_t end) {
    const Quantizing *q = data;
    for (int64_t index = first; index < end; index++)
        if (!quantize_piece(q->product, q->laid, index)) q->product->failed = true;
}

/* Whether the activations of one format serve another. */
static bool is_laid_alike(const Laid *a, const Laid *b) {
    Format one = a->format, other = b->format;
    if (one == other || (a->is_wide && b->is_wide)) return true;
    if (a->is_wide != b->is_wide || one == BF16_PAIRS || other == BF16_PAIRS) return false;
    if (is_float(one) || is_float(other)) return is_float(one) && is_float(other);
    return has_minimum(one) && has_minimum(other) && unit_scales(one) == unit_scales(other);
}

/* From so many tokens on, what panels of WIDE_TOKENS waste at the end is less than they save. */
#define LEAST_WIDE 17

/* Tokens of a panel: the least width that there are kernels for of the fewest panels. */
static int panel_width(int64_t tokens, int most) {
    const int64_t each = divide_up(tokens, divide_up(tokens, most));
    return (int)(each > 4 ? divide_up(each, 4) * 4 : each > 2 ? 4 : each);
}

/* How activations are laid out for a matrix. */
static Laid plan_layout(const Product *p, const Matrix *m) {
    Laid laid = {.format = (Format)m->format};
    laid.is_wide = m->path->multiply_wide && laid.format <= Q6_K && laid.format != Q8_0 &&
                   p->columns % SPAN_COLUMNS == 0 && p->tokens >= LEAST_WIDE;
    laid.width = laid.is_wide ? WIDE_TOKENS : panel_width(p->tokens, m->path->most_tokens);
    if (laid.format == BF16 && laid.width > 4 && m->path->multiplies_bf16)
        laid.format = BF16_PAIRS;
    laid.panels = divide_up(p->tokens, laid.width);
    int64_t units = padded_columns(p->columns) / UNIT_COLUMNS;
    int64_t bytes = laid.is_wide ? p->columns / SPAN_COLUMNS * WIDE_SPAN_BYTES
                                 : units * panel_unit_bytes(laid.format, laid.width);
    laid.panel_bytes = divide_up(bytes, LINE) * LINE;
    return laid;
}

/* Lays the activations out for factor `index`, unless that was done for one before it. */
static bool lay_activations(Product *p, int index, int threads) {
    Laid *laid = &p->laid[index];
    *laid = plan_layout(p, p->factors[index].matrix);
    for (int i = 0; i < index; i++)
        if (is_laid_alike(&p->laid[i], laid)) {
            laid->data = p->laid[i].data;
            return true;
        }
    laid->data = take_scratch(laid->panels * laid->panel_bytes);
    if (!laid->data) return false;
    Quantizing quantizing = {p, laid};
    run_tasks(p->tokens * p->columns < LEAST_LAID ? 1 : threads,
              laid->panels * pieces_of(p), quantize_task, &quantizing);
    return !p->failed;
}

static void free_activations(Product *p) {
    for (int i = p->count - 1; i >= 0; i--) {
        bool is_shared = false;
        for (int before = 0; before < i; before++)
            is_shared |= p->laid[before].data == p->laid[i].data;
        const Laid *laid = &p->laid[i];
        if (!is_shared) give_scratch(laid->data, laid->panels * laid->panel_bytes);
    }
}

void store_results(const Product *p, const Factor *f, const float *results, int64_t token,
                   int64_t tokens, int64_t row) {
    int64_t rows = f->matrix->rows, count = at_most(GROUP_ROWS, rows - row);
    for (int64_t t = 0; t < tokens; t++, results += GROUP_ROWS) {
        int64_t place = (token + t) * rows + row;
        if (f->added)
            for (int64_t i = 0; i < count; i++)
                ((float *)f->out)[place + i] = f->added[place + i] + results[i];
        else if (p->type == TYPE_F32 && count == GROUP_ROWS) /* a known size is no call */
            memcpy((float *)f->out + place, results, GROUP_ROWS * sizeof(float));
        else if (p->type == TYPE_F32)
            memcpy((float *)f->out + place, results, (size_t)count * sizeof(float));
        else
            for (int64_t i = 0; i < count; i++)
                ((uint16_t *)f->out)[place + i] = bf16_of_float(results[i]);
    }
}

#define CACHED_BYTES (256 << 10)

/* Groups first to end-1 for all tokens; the weights stay in the second-level cache meanwhile. */
static void multiply_groups(const Product *p, const Factor *f, const Laid *laid, int64_t first,
                            int64_t end) {
    const Matrix *m = f->matrix;
    const int64_t bytes = group_bytes((Format)m->format, m->columns);
    const int64_t step = CACHED_BYTES / bytes > 1 ? CACHED_BYTES / bytes : 1;
    float results[MAX_TOKENS * GROUP_ROWS];
    for (; first < end; first += step)
        for (int64_t index = 0; index < laid->panels; index++) {
            const uint8_t *panel = laid->data + index * laid->panel_bytes;
            int64_t token = index * laid->width, tokens = at_most(laid->width, p->tokens - token);
            for (int64_t group = first; group < at_most(first + step, end); group++) {
                const bool exact = laid->format == BF16_PAIRS && m->subnormal[group];
                m->path->multiply(exact ? BF16_SUBNORMAL : laid->format, m->packed + group * bytes,
                                  panel, laid->width, m->columns, results);
                store_results(p, f, results, token, tokens, group * GROUP_ROWS);
            }
        }
}

static int64_t groups_of(const Matrix *m) { return divide_up(m->rows, GROUP_ROWS); }

/* Tasks of all matrices are numbered one matrix after another. */
static int64_t tasks_of(const Product *p, const Matrix *m) {
    return divide_up(groups_of(m), p->task_groups);
}

static void multiply_task(void *data, int64_t first, int64_t end) {
    Product *p = data;
    int64_t start = 0;
    for (int i = 0; i < p->count; start += tasks_of(p, p->factors[i++].matrix)) {
        const Matrix *m = p->factors[i].matrix;
        int64_t group = p->task_groups * (first > start ? first - start : 0);
        int64_t last = at_most(p->task_groups * (end - start), groups_of(m));
        if (group >= last) continue;
        if (!p->laid[i].is_wide)
            multiply_groups(p, &p->factors[i], &p->laid[i], group, last);
        else if (!multiply_tiles(p, &p->factors[i], &p->laid[i], group, last))
            p->failed = true;
    }
}

/* Which matrix was multiplied after which the last time: models repeat their order at every step.
 * Plain addresses, since a matrix may be gone when it is looked up. Several threads may write here;
 * what they mix up is a request for memory that is not wanted. */
#define FOLLOWERS 4096
static struct {
    _Atomic(const uint8_t *) matrix, next;
    _Atomic int64_t next_bytes;
} followers[FOLLOWERS];
static _Thread_local const uint8_t *previous;

#define AHEAD_BYTES (1 << 20) /* half of a usual second-level cache */

/* Remembers the order and announces the matrix that will come next: the part of it where workers
 * begin, since the caller takes the first piece. */
static void announce_next(const Matrix *m, int threads) {
#define FOLLOWER(address) (&followers[(uintptr_t)(address) / 4096 % FOLLOWERS])
#define PUT(place, value) atomic_store_explicit(&(place), value, memory_order_relaxed)
#define GET(place) atomic_load_explicit(&(place), memory_order_relaxed)
    if (previous) {
        PUT(FOLLOWER(previous)->matrix, previous);
        PUT(FOLLOWER(previous)->next, m->packed);
        PUT(FOLLOWER(previous)->next_bytes,
            groups_of(m) * group_bytes((Format)m->format, m->columns));
    }
    previous = m->packed;
    const uint8_t *next = NULL;
    int64_t bytes = 0;
    if (GET(FOLLOWER(previous)->matrix) == previous) {
        next = GET(FOLLOWER(previous)->next);
        bytes = GET(FOLLOWER(previous)->next_bytes);
        next += bytes / (2 * threads);
        bytes -= bytes / (2 * threads);
    }
    fetch_ahead(next, at_most(bytes, AHEAD_BYTES));
}

bool multiply_each(const Factor *factors, int count, const void *x, Type type, int64_t tokens,
                   int threads) {
    Product p = {.factors = factors, .count = count, .x = x, .type = type, .tokens = tokens};
    int64_t tasks = 0;
    p.columns = factors[0].matrix->columns;
    p.task_groups = 1;
    for (int i = 0; i < count && !p.failed; i++) {
        p.failed = !lay_activations(&p, i, threads);
        if (p.laid[i].is_wide) p.task_groups = TILE_GROUPS;
    }
    for (int i = 0; i < count; i++) tasks += tasks_of(&p, factors[i].matrix);
    if (tokens == 1) announce_next(factors[0].matrix, threads);
    if (!p.failed) run_tasks(threads, tasks, multiply_task, &p);
    if (tokens > 1) fetch_ahead(NULL, 0);
    free_activations(&p);
    return !p.failed;
}

/* out (tokens, rows) = x (tokens, columns) times the transposed matrix; both of `type`.
 * Returns false when memory for the activations is missing. */
EXPORT bool mrs_matmul(const Matrix *matrix, const void *x, int type, int64_t tokens, void *out,
                       int threads) {
    return multiply_each(&(Factor){matrix, out, NULL}, 1, x, (Type)type, tokens, threads);
}

/* Packing activations into panels, once for all matrices that read them in the same form.
 *
 * Few activations are packed by each thread for itself, and normed before. Shared ones would pass
 * from the caches of the thread that wrote them to those of all others, and for the next product
 * back, which takes longer than to compute them.
 */
#include "elementwise.h"
#include "gemm/product.h"
#include "gemm/weights.h"
#include "runtime/scratch.h"
#include "runtime/threads.h"

/* Columns of a panel that one task packs. */
#define PIECE_COLUMNS 512
/* So many values are packed by each thread for itself, if they fit. */
#define OWN_VALUES 16384
#define OWN_BYTES (128 << 10)

typedef struct {
    const Product *product;
    int operand;
} PackArgs;

static const KernelTable *kernels_of(const Product *p) { return p->operands[0].matrix->kernels; }

static int64_t panel_pieces(const Product *p) { return divide_up(p->columns, PIECE_COLUMNS); }

/* Pieces of an operand's activations, panel by panel. */
static int64_t pieces_of(const Product *p, int operand) {
    return p->activations[operand].panels * panel_pieces(p);
}

/* Rows that are packed at once, so that what is written is contiguous. */
#define PACKED_ROWS 4

/* Values of x from `column` on of the row at `offset`, in the order of a matrix's columns. */
static void copy_values(const Product *p, const int32_t *order, int64_t offset, int64_t column,
                        int64_t columns, float *out) {
    const float *floats = (const float *)p->x + offset;
    const uint16_t *halves = (const uint16_t *)p->x + offset;
    for (int64_t i = column; i < column + columns; i++, out++) {
        const int64_t source = order ? order[i] : i;
        *out = p->type == TYPE_F32 ? floats[source] : float_of_bf16(halves[source]);
    }
}

/* Whether activations are rounded to so few bits that a second row for what is left counts. */
static bool rounds_values(Format format) { return !is_float(format) || format == BF16_PAIRS; }

/* What the row of token `t` of a panel leaves of its values; `unit` is the first of these. */
static void find_residuals(const PackedActivations *a, const uint8_t *unit, int t, const float *row,
                           int64_t columns, float *out) {
    const int64_t bytes = panel_unit_bytes(a->format, a->width);
    for (int64_t first = 0; first < columns; first += UNIT_COLUMNS, unit += bytes) {
        const int64_t count = at_most(UNIT_COLUMNS, columns - first);
        if (a->format == BF16_PAIRS) {
            const uint16_t *high = (const uint16_t *)unit + t * UNIT_COLUMNS;
            for (int64_t i = 0; i < count; i++)
                out[first + i] = row[first + i] - float_of_bf16(high[i]);
            continue;
        }
        const int8_t *codes = (const int8_t *)unit + t * UNIT_COLUMNS;
        const float step = ((const float *)(unit + a->width * UNIT_COLUMNS))[t];
        for (int64_t i = 0; i < count; i++) out[first + i] = row[first + i] - step * codes[i];
    }
}

/* Missing tokens of the last panel are zeros. */
static void pack_piece(const Product *p, const PackedActivations *a, int64_t index) {
    static const float zeros[PIECE_COLUMNS];
    const int64_t panel = index / panel_pieces(p), first = panel * a->width;
    const int64_t column = index % panel_pieces(p) * PIECE_COLUMNS;
    const int64_t columns = at_most(PIECE_COLUMNS, p->columns - column);
    uint8_t *unit = panels_of(p, a) + panel * a->panel_bytes +
                    column / UNIT_COLUMNS * panel_unit_bytes(a->format, a->width);
    for (int t = 0, count; t < a->width; t += count * a->token_rows) {
        const float *rows[PACKED_ROWS];
        float converted[PACKED_ROWS][PIECE_COLUMNS];
        count = a->token_rows > 1 ? 1 : (int)at_most(PACKED_ROWS, a->width - t);
        for (int i = 0; i < count; i++) {
            const int64_t token = (first + t + i) / a->token_rows, offset = token * p->columns;
            const bool is_missing = token >= p->tokens;
            rows[i] = is_missing ? zeros : (const float *)p->x + offset + column;
            if (is_missing || (p->type == TYPE_F32 && !a->order)) continue;
            rows[i] = converted[i];
            copy_values(p, a->order, offset, column, columns, converted[i]);
        }
        const KernelTable *kernels = kernels_of(p);
        kernels->quantize(a->format, rows, count, t, a->width, columns, unit);
        if (a->token_rows == 1) continue;
        find_residuals(a, unit, t, rows[0], columns, converted[1]);
        rows[0] = converted[1];
        kernels->quantize(a->format, rows, 1, t + 1, a->width, columns, unit);
    }
}

static void pack_task(void *data, int64_t first, int64_t end) {
    const PackArgs *args = data;
    for (int64_t index = first; index < end; index++)
        pack_piece(args->product, &args->product->activations[args->operand], index);
}

static bool has_same_order(const PackedActivations *a, const PackedActivations *b, int64_t columns) {
    if (a->order == b->order) return true;
    return a->order && b->order &&
           !memcmp(a->order, b->order, (size_t)columns * sizeof *a->order);
}

/* Whether activations of so many columns that are packed for one matrix serve another. */
static bool has_same_packing(const PackedActivations *a, const PackedActivations *b,
                             int64_t columns) {
    const Format one = a->format, other = b->format;
    if (a->token_rows != b->token_rows || !has_same_order(a, b, columns)) return false;
    if (one == other) return true;
    if (one == BF16_PAIRS || other == BF16_PAIRS) return false;
    if (is_float(one) || is_float(other))
        return is_float(one) && is_float(other) && a->is_wide == b->is_wide;
    return has_minimum(one) && has_minimum(other) && unit_scales(one) == unit_scales(other);
}

/* Tokens of a panel: the fewest panels, of the smallest width that has a kernel: a multiple of
 * `step`, or at most 2. */
static int panel_width(int64_t tokens, int most, int step) {
    const int64_t each = divide_up(tokens, divide_up(tokens, most));
    return (int)(each > 2 ? divide_up(each, step) * step : each);
}

/* The panels that a matrix needs, without data. */
static PackedActivations plan_panels(const Product *p, const Matrix *m) {
    PackedActivations a = {.format = (Format)m->format, .order = m->order};
    const int narrow = m->kernels->narrow_tokens;
    if (a.format == BF16 && m->kernels->multiplies_bf16) a.format = BF16_PAIRS;
    a.token_rows = m->residuals && rounds_values(a.format) ? 2 : 1;
    const int64_t rows = p->tokens * a.token_rows;
    const bool has_tiles = m->kernels->has_tiles && is_float(a.format) && a.format != F32;
    a.is_wide = rows > narrow && m->kernels->multiply_wide && (!is_float(a.format) || has_tiles);
    a.width = panel_width(rows, a.is_wide ? WIDE_TOKENS : narrow,
                          a.is_wide && has_tiles ? TILE_TOKENS : 4);
    a.panels = divide_up(rows, a.width);
    const int64_t bytes =
        padded_columns(p->columns) / UNIT_COLUMNS * panel_unit_bytes(a.format, a.width);
    a.panel_bytes = divide_up(bytes, LINE) * LINE;
    return a;
}

/* Plans the activations of all operands; returns their bytes. */
static int64_t plan_activations(Product *p) {
    int64_t bytes = 0;
    for (int i = 0; i < p->count; i++) {
        PackedActivations *a = &p->activations[i];
        *a = plan_panels(p, p->operands[i].matrix);
        while (a->form < i && !has_same_packing(&p->activations[a->form], a, p->columns)) a->form++;
        a->offset = a->form < i ? p->activations[a->form].offset : bytes;
        if (a->form == i) bytes += a->panels * a->panel_bytes;
    }
    return bytes;
}

bool pack_activations(Product *p, int threads) {
    p->packed_bytes = plan_activations(p);
    if (p->tokens * p->columns <= OWN_VALUES && p->packed_bytes <= OWN_BYTES) return true;
    p->packed = scratch_alloc(p->packed_bytes);
    if (!p->packed) return false;
    if (p->norm.weight) {
        mrs_rms_norm(kernels_of(p), p->x, p->norm.weight, p->norm.eps, p->tokens, p->columns,
                     p->norm.out, threads);
        p->x = p->norm.out;
    }
    for (int i = 0; i < p->count; i++)
        if (p->activations[i].form == i)
            run_tasks(threads, pieces_of(p, i), pack_task, &(PackArgs){p, i});
    return true;
}

void free_activations(Product *p) { scratch_free(p->packed, p->packed_bytes); }

void pack_own_activations(Product *p) {
    static _Thread_local _Alignas(LINE) uint8_t packed[OWN_BYTES];
    static _Thread_local _Alignas(LINE) float normed[OWN_VALUES];
    p->packed = packed;
    if (p->norm.weight) {
        for (int64_t i = 0; i < p->tokens * p->columns; i += p->columns)
            kernels_of(p)->normalize((const float *)p->x + i, p->norm.weight, p->norm.eps,
                                     p->columns, normed + i);
        p->x = normed;
    }
    for (int i = 0; i < p->count; i++)
        if (p->activations[i].form == i) pack_task(&(PackArgs){p, i}, 0, pieces_of(p, i));
}

/* Packing activations into panels, once for all matrices that read them in the same form. */
#include "gemm/product.h"
#include "gemm/weights.h"
#include "runtime/scratch.h"
#include "runtime/threads.h"

/* Columns of a panel that one task packs, and the fewest values for which threads are worth it. */
#define PIECE_COLUMNS 512
#define MIN_PARALLEL_PACKED 16384

typedef struct {
    Product *product;
    const PackedActivations *activations;
} PackArgs;

static int64_t pieces_of(const Product *p) { return divide_up(p->columns, PIECE_COLUMNS); }

/* Pieces are numbered panel by panel. Returns false if memory is missing. */
static bool pack_piece(const Product *p, const PackedActivations *a, int64_t index) {
    const KernelTable *kernels = p->operands[0].matrix->kernels;
    const int64_t first = index / pieces_of(p) * a->width;
    const int64_t column = index % pieces_of(p) * PIECE_COLUMNS;
    const int64_t columns = at_most(PIECE_COLUMNS, p->columns - column);
    const int tokens = (int)at_most(a->width, p->tokens - first);
    const int64_t converted_bytes = tokens * columns * (int64_t)sizeof(float);
    const float *rows[MAX_TOKENS];
    float *converted = NULL;
    if (p->type == TYPE_BF16 && !(converted = scratch_alloc(converted_bytes))) return false;
    for (int t = 0; t < tokens; t++) {
        const int64_t offset = (first + t) * p->columns + column;
        rows[t] = converted ? converted + t * columns : (const float *)p->x + offset;
        for (int64_t i = 0; converted && i < columns; i++)
            converted[t * columns + i] = float_of_bf16(((const uint16_t *)p->x)[offset + i]);
    }
    uint8_t *panel = a->data + index / pieces_of(p) * a->panel_bytes;
    if (a->is_prompt_gemm)
        kernels->quantize_prompt_panel(rows, tokens, columns,
                                       panel + column / SPAN_COLUMNS * PROMPT_SPAN_BYTES);
    else
        kernels->quantize(a->format, rows, tokens, a->width, columns,
                          panel + column / UNIT_COLUMNS * panel_unit_bytes(a->format, a->width));
    scratch_free(converted, converted_bytes);
    return true;
}

static void pack_task(void *data, int64_t first, int64_t end) {
    const PackArgs *args = data;
    for (int64_t index = first; index < end; index++)
        if (!pack_piece(args->product, args->activations, index)) args->product->failed = true;
}

/* Whether activations that are packed for one matrix serve another. */
static bool has_same_packing(const PackedActivations *a, const PackedActivations *b) {
    const Format one = a->format, other = b->format;
    if (one == other || (a->is_prompt_gemm && b->is_prompt_gemm)) return true;
    if (a->is_prompt_gemm != b->is_prompt_gemm) return false;
    if (one == BF16_PAIRS || other == BF16_PAIRS) return false;
    if (is_float(one) || is_float(other)) return is_float(one) && is_float(other);
    return has_minimum(one) && has_minimum(other) && unit_scales(one) == unit_scales(other);
}

/* With fewer tokens the empty rows of the last panel of PROMPT_TOKENS cost more than prompt
 * kernels save. */
#define MIN_PROMPT_TOKENS 17

/* Tokens of a panel: the fewest panels, of the smallest width that has a kernel. */
static int panel_width(int64_t tokens, int max_tokens) {
    const int64_t each = divide_up(tokens, divide_up(tokens, max_tokens));
    return (int)(each > 4 ? divide_up(each, 4) * 4 : each > 2 ? 4 : each);
}

/* The panels that a matrix needs, without data. */
static PackedActivations plan_panels(const Product *p, const Matrix *m) {
    PackedActivations a = {.format = (Format)m->format};
    a.is_prompt_gemm = m->kernels->multiply_tile && a.format <= Q6_K && a.format != Q8_0 &&
                       p->columns % SPAN_COLUMNS == 0 && p->tokens >= MIN_PROMPT_TOKENS;
    a.width = a.is_prompt_gemm ? PROMPT_TOKENS : panel_width(p->tokens, m->kernels->max_tokens);
    if (a.format == BF16 && a.width > 4 && m->kernels->multiplies_bf16) a.format = BF16_PAIRS;
    a.panels = divide_up(p->tokens, a.width);
    const int64_t units = padded_columns(p->columns) / UNIT_COLUMNS;
    const int64_t bytes = a.is_prompt_gemm ? p->columns / SPAN_COLUMNS * PROMPT_SPAN_BYTES
                                           : units * panel_unit_bytes(a.format, a.width);
    a.panel_bytes = divide_up(bytes, LINE) * LINE;
    return a;
}

bool pack_activations(Product *p, int index, int threads) {
    PackedActivations *a = &p->activations[index];
    *a = plan_panels(p, p->operands[index].matrix);
    for (int i = 0; i < index; i++)
        if (has_same_packing(&p->activations[i], a)) {
            a->data = p->activations[i].data;
            return true;
        }
    a->data = scratch_alloc(a->panels * a->panel_bytes);
    if (!a->data) return false;
    PackArgs args = {p, a};
    run_tasks(p->tokens * p->columns < MIN_PARALLEL_PACKED ? 1 : threads, a->panels * pieces_of(p),
              pack_task, &args);
    return !p->failed;
}

void free_activations(Product *p) {
    for (int i = p->count - 1; i >= 0; i--) {
        const PackedActivations *a = &p->activations[i];
        bool is_shared = false;
        for (int before = 0; before < i; before++)
            is_shared |= p->activations[before].data == a->data;
        if (!is_shared) scratch_free(a->data, a->panels * a->panel_bytes);
    }
}

/* Products of many tokens with tiles of requantized weights; see prompt_gemm.inc.h.
 *
 * A tile of TILE_COLUMNS columns stays in the first-level cache while it is multiplied with panel
 * after panel; the same columns of the panels, and the sums of some tiles, stay in the second-level
 * cache. The sizes are the fastest of those measured.
 */
#include <string.h>

#include "gemm/product.h"
#include "runtime/scratch.h"

#define TILE_COLUMNS 512
#define TILES 8
#define PANELS 48

typedef float Sums[TILE_GROUPS * PROMPT_TOKENS * GROUP_ROWS];

/* The memory of one thread: one tile, and the sums (tiles, panels). */
typedef struct {
    uint8_t tile[TILE_COLUMNS / SPAN_COLUMNS * TILE_SPAN_BYTES];
    Sums sums[];
} TileBuffers;

typedef struct {
    int64_t first, end;
} Range;

static int64_t size_of(Range range) { return range.end - range.first; }

static Range part_of(Range range, int64_t first, int64_t size) {
    return (Range){first, at_most(first + size, range.end)};
}

/* Requantizes some columns of two groups, or of one, and prefetches the groups that come next. */
static void make_tile(const Matrix *m, Range groups, Range columns, uint8_t *tile) {
    const Format format = (Format)m->format;
    const int64_t bytes = group_bytes(format, m->columns);
    const int64_t read_bytes = group_bytes(format, size_of(columns));
    const uint8_t *block = m->packed + groups.first * bytes + group_bytes(format, columns.first);
    for (int64_t i = 0; i < TILE_GROUPS; i++, block += bytes) {
        uint8_t *part = tile + i * LINE;
        if (i < size_of(groups))
            m->kernels->requantize(format, block, size_of(columns), part);
        else /* with scales of zero the codes do not matter */
            for (int64_t column = 0; column < size_of(columns); column += SPAN_COLUMNS)
                memset(part + column / SPAN_COLUMNS * TILE_SPAN_BYTES, 0, LINE);
        for (int64_t line = 0; line < read_bytes; line += LINE)
            __builtin_prefetch(block + TILE_GROUPS * bytes + line, 0, 2);
    }
}

/* sums[panel] += the tile times the same columns of each panel. */
static void add_products(const Matrix *m, const PackedActivations *a, const uint8_t *tile,
                         Range columns, Range panels, Sums *sums) {
    const uint8_t *panel =
        a->data + panels.first * a->panel_bytes + columns.first / SPAN_COLUMNS * PROMPT_SPAN_BYTES;
    for (int64_t index = panels.first; index < panels.end; index++, panel += a->panel_bytes)
        m->kernels->multiply_tile(tile, panel, a->panel_bytes, size_of(columns), *sums++);
}

/* Token by token, so that what is written is contiguous. */
static void store_sums(const Product *p, const MatmulOperand *operand, Range groups, Range panels,
                       const TileBuffers *buffers) {
    const int64_t end = at_most(panels.end * PROMPT_TOKENS, p->tokens);
    for (int64_t token = panels.first * PROMPT_TOKENS; token < end; token++) {
        const int64_t panel = token / PROMPT_TOKENS - panels.first;
        for (int64_t i = 0; i < size_of(groups); i++) {
            const float *sums = buffers->sums[i / TILE_GROUPS * size_of(panels) + panel];
            sums += (i % TILE_GROUPS * PROMPT_TOKENS + token % PROMPT_TOKENS) * GROUP_ROWS;
            store_results(p, operand, sums, token, 1, (groups.first + i) * GROUP_ROWS);
        }
    }
}

/* Up to TILES tiles of groups times up to PANELS panels. */
static void multiply_some(const Product *p, int index, Range groups, Range panels,
                          TileBuffers *buffers) {
    const Matrix *m = p->operands[index].matrix;
    const Range all = {0, m->columns};
    const int64_t tiles = divide_up(size_of(groups), TILE_GROUPS);
    memset(buffers->sums, 0, (size_t)(tiles * size_of(panels)) * sizeof(Sums));
    for (int64_t column = 0; column < m->columns; column += TILE_COLUMNS) {
        const Range columns = part_of(all, column, TILE_COLUMNS);
        for (int64_t i = 0; i < tiles; i++) {
            make_tile(m, part_of(groups, groups.first + i * TILE_GROUPS, TILE_GROUPS), columns,
                      buffers->tile);
            add_products(m, &p->activations[index], buffers->tile, columns, panels,
                         buffers->sums + i * size_of(panels));
        }
    }
    store_sums(p, &p->operands[index], groups, panels, buffers);
}

bool multiply_tiles(const Product *p, int index, int64_t first, int64_t end) {
    const Range groups = {first, end}, panels = {0, p->activations[index].panels};
    const int64_t tiles = at_most(TILES, divide_up(end - first, TILE_GROUPS));
    const int64_t sums = tiles * at_most(PANELS, panels.end);
    const int64_t buffers_bytes = (int64_t)sizeof(TileBuffers) + sums * (int64_t)sizeof(Sums);
    TileBuffers *buffers = scratch_alloc(buffers_bytes);
    if (!buffers) return false;
    for (int64_t panel = 0; panel < panels.end; panel += PANELS)
        for (int64_t group = first; group < end; group += TILES * TILE_GROUPS)
            multiply_some(p, index, part_of(groups, group, TILES * TILE_GROUPS),
                          part_of(panels, panel, PANELS), buffers);
    scratch_free(buffers, buffers_bytes);
    return true;
}

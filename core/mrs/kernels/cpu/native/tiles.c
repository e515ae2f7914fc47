/* Products of many tokens with tiles of levelled weights; see wide.h.
 *
 * A tile of TILE_COLUMNS columns stays in the first-level cache while the panels pass; the same
 * columns of the panels, and the sums of some tiles, stay in the second-level one. How many of each
 * do best was measured.
 */
#include <string.h>

#include "product.h"
#include "scratch.h"
#include "weights.h"

#define TILE_COLUMNS 512
#define TILES 8
#define PANELS 48

typedef float Sums[TILE_GROUPS * WIDE_TOKENS * GROUP_ROWS];

/* What one thread works with; the sums are those of each tile and each panel. */
typedef struct {
    uint8_t tile[TILE_COLUMNS / SPAN_COLUMNS * TILE_SPAN_BYTES];
    Sums sums[];
} Workbench;

typedef struct {
    int64_t first, end;
} Range;

static int64_t size_of(Range range) { return range.end - range.first; }

static Range part_of(Range range, int64_t first, int64_t size) {
    return (Range){first, at_most(first + size, range.end)};
}

/* Levels some columns of two groups, or of one, and asks for the groups that come next. */
static void make_tile(const Matrix *m, Range groups, Range columns, uint8_t *tile) {
    const Format format = (Format)m->format;
    const int64_t bytes = group_bytes(format, m->columns);
    const int64_t read_bytes = group_bytes(format, size_of(columns));
    const uint8_t *block = m->packed + groups.first * bytes + group_bytes(format, columns.first);
    for (int64_t i = 0; i < TILE_GROUPS; i++, block += bytes) {
        uint8_t *part = tile + i * LINE;
        if (i < size_of(groups))
            m->path->level(format, block, size_of(columns), part);
        else /* steps of zero, whatever the codes */
            for (int64_t column = 0; column < size_of(columns); column += SPAN_COLUMNS)
                memset(part + column / SPAN_COLUMNS * TILE_SPAN_BYTES, 0, LINE);
        for (int64_t line = 0; line < read_bytes; line += LINE)
            __builtin_prefetch(block + TILE_GROUPS * bytes + line, 0, 2);
    }
}

/* Adds the products of a tile with some columns of some panels. */
static void add_products_of(const Matrix *m, const Laid *laid, const uint8_t *tile, Range columns,
                            Range panels, Sums *sums) {
    const uint8_t *panel = laid->data + panels.first * laid->panel_bytes +
                           columns.first / SPAN_COLUMNS * WIDE_SPAN_BYTES;
    for (int64_t index = panels.first; index < panels.end; index++, panel += laid->panel_bytes)
        m->path->multiply_wide(tile, panel, laid->panel_bytes, size_of(columns), *sums++);
}

/* Token by token, so that what is written lies side by side. */
static void store_sums(const Product *p, const Factor *f, Range groups, Range panels,
                       const Workbench *workbench) {
    const int64_t end = at_most(panels.end * WIDE_TOKENS, p->tokens);
    for (int64_t token = panels.first * WIDE_TOKENS; token < end; token++) {
        const int64_t panel = token / WIDE_TOKENS - panels.first;
        for (int64_t i = 0; i < size_of(groups); i++) {
            const float *sums = workbench->sums[i / TILE_GROUPS * size_of(panels) + panel];
            sums += (i % TILE_GROUPS * WIDE_TOKENS + token % WIDE_TOKENS) * GROUP_ROWS;
            store_results(p, f, sums, token, 1, (groups.first + i) * GROUP_ROWS);
        }
    }
}

/* As many groups as there are tiles, and some panels. */
static void multiply_some(const Product *p, const Factor *f, const Laid *laid, Range groups,
                          Range panels, Workbench *workbench) {
    const Matrix *m = f->matrix;
    const Range all = {0, m->columns};
    const int64_t tiles = divide_up(size_of(groups), TILE_GROUPS);
    memset(workbench->sums, 0, (size_t)(tiles * size_of(panels)) * sizeof(Sums));
    for (int64_t column = 0; column < m->columns; column += TILE_COLUMNS) {
        const Range columns = part_of(all, column, TILE_COLUMNS);
        for (int64_t i = 0; i < tiles; i++) {
            make_tile(m, part_of(groups, groups.first + i * TILE_GROUPS, TILE_GROUPS), columns,
                      workbench->tile);
            add_products_of(m, laid, workbench->tile, columns, panels,
                            workbench->sums + i * size_of(panels));
        }
    }
    store_sums(p, f, groups, panels, workbench);
}

bool multiply_tiles(const Product *p, const Factor *f, const Laid *laid, int64_t first,
                    int64_t end) {
    const Range groups = {first, end}, panels = {0, laid->panels};
    const int64_t tiles = at_most(TILES, divide_up(end - first, TILE_GROUPS));
    const int64_t sums = tiles * at_most(PANELS, laid->panels);
    const int64_t workbench_bytes = (int64_t)sizeof(Workbench) + sums * (int64_t)sizeof(Sums);
    Workbench *workbench = take_scratch(workbench_bytes);
    if (!workbench) return false;
    for (int64_t panel = 0; panel < laid->panels; panel += PANELS)
        for (int64_t group = first; group < end; group += TILES * TILE_GROUPS)
            multiply_some(p, f, laid, part_of(groups, group, TILES * TILE_GROUPS),
                          part_of(panels, panel, PANELS), workbench);
    give_scratch(workbench, workbench_bytes);
    return true;
}

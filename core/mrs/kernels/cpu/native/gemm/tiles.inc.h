/* Products of two groups with many tokens by AMX; included after matmul.inc.h. Those of floats are in
 * float_tiles.inc.h.
 *
 * A tile of activations is 16 tokens and the columns of one scale, as they lie in a panel. A tile
 * of weights is the same columns of a group: line k is quad k, as in the packed storage. Their
 * product is the integer sums of 16 tokens and 16 rows, exact like those of matmul.inc.h. They are
 * scaled and added by the same operations in the same order, so that all results have the same
 * bits.
 *
 * A scale of 32 columns fills half of a tile's depth, one of 16 columns a quarter; sums of two
 * scales cannot be mixed. Cycles for 16 tokens, two groups and one unit, as bounds from counts on
 * Sapphire Rapids (16 cycles per tile product, two vector operations, two loads and one store per
 * cycle; the larger figures are those of formats with minima):
 *
 *                                   one scale    two scales
 *   wide.inc.h: vector operations     160-176       192-224
 *   here:       tile products              32            64
 *               vector operations       48-64        96-128
 *               loads                      56            88
 *               stores                     64            96
 *
 * On a virtual Xeon with AMX (4096 x 4096, 512 tokens, four threads) Q4_K and Q8_0 were multiplied
 * 1.4 times as fast as by wide.inc.h, at 13 % of the peak of tiles.
 */
#ifdef MRS_TILES
#include MRS_TILES /* an emulation for tests */
#else
#include "isa/tiles_amx.h"
#endif

#define TOKENS_AT_ONCE 4 /* a divisor of the width of panels */

/* Sums of two tiles of tokens, for each scale of a unit and each group. No two places that are in
 * use at a time are 4 KiB apart: a processor takes such a load for one of what was just stored. */
typedef struct {
    _Alignas(LINE) int32_t of[2][2][2][TILE_TOKENS * GROUP_ROWS];
} TileSums;

/* Tiles 0 and 1 are the weights of both groups for the first scale of a unit, 2 and 3 those for the
 * second; 4 and 5 the activations for each scale; 6 and 7 the sums of each group. */
INLINE void configure_tiles(const int scales) {
    TileShapes shapes = {.palette = 1};
    const int columns = UNIT_COLUMNS / scales;
    for (int tile = 0; tile < 8; tile++) {
        const bool is_weights = tile < 4, is_activations = tile == 4 || tile == 5;
        shapes.rows[tile] = (uint8_t)(is_weights ? columns / 4 : TILE_TOKENS);
        shapes.row_bytes[tile] = (uint16_t)(is_activations ? columns : LINE);
    }
    tiles_configure(&shapes);
}

INLINE void load_weight_tiles(const Format format, const uint8_t *const unit[2]) {
    _Alignas(LINE) uint8_t codes[2][8][LINE];
#pragma GCC unroll 2
    for (int g = 0; g < 2; g++) {
#pragma GCC unroll 8
        for (int line = 0; line < code_bits(format); line++) prefetch_line(unit[g] + line * LINE);
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) {
            const Ints quad = product_codes(format, unit[g], k);
            memcpy(codes[g][k], &quad, LINE);
        }
    }
    tile_load(0, codes[0][0], LINE);
    tile_load(1, codes[1][0], LINE);
    if (unit_scales(format) == 1) return;
    tile_load(2, codes[0][4], LINE);
    tile_load(3, codes[1][4], LINE);
}

/* The sums of the tokens whose codes are at x, in place `i`. */
INLINE void multiply_tiles(const Format format, const uint8_t *x, TileSums *sums, const int i) {
    tile_load(4, x, UNIT_COLUMNS);
    tile_zero(6);
    tile_dot(6, 4, 0);
    tile_store(6, sums->of[0][0][i], LINE);
    tile_zero(7);
    tile_dot(7, 4, 1);
    tile_store(7, sums->of[0][1][i], LINE);
    if (unit_scales(format) == 1) return;
    tile_load(5, x + UNIT_COLUMNS / 2, UNIT_COLUMNS);
    tile_zero(6);
    tile_dot(6, 5, 2);
    tile_store(6, sums->of[1][0][i], LINE);
    tile_zero(7);
    tile_dot(7, 5, 3);
    tile_store(7, sums->of[1][1][i], LINE);
}

/* Adds the sums of TOKENS_AT_ONCE tokens from `t` on, the first of which is `row` in place `now`, to
 * their totals (TOKENS_AT_ONCE, 2 * GROUP_ROWS). `step` is that of the panel's first token. */
INLINE void add_tile_rows(const Format format, const TileSums *sums, const int now, const int row,
                          const int t, const int width, const float *step,
                          const Floats *const scale[2], const Floats *const minimum[2],
                          float *totals) {
    const int scales = unit_scales(format);
    const int32_t *correction = (const int32_t *)(step + width);
#pragma GCC unroll 4
    for (int i = 0; i < TOKENS_AT_ONCE; i++) {
        const Floats step_of_token = lanes_float(step[t + i]);
        Floats shift[2];
        Ints start[2];
#pragma GCC unroll 2
        for (int s = 0; s < scales; s++) {
            const int32_t *at = &correction[s * width + t + i];
            shift[s] = lanes_float(*(const float *)at);
            start[s] = lanes_int(has_minimum(format) ? SUM_START : *at);
        }
#pragma GCC unroll 2
        for (int g = 0; g < 2; g++, totals += GROUP_ROWS) {
            Floats scaled = lanes_zero(), total = lanes_load_floats(totals);
#pragma GCC unroll 2
            for (int s = 0; s < scales; s++) {
                const int32_t *products = &sums->of[s][g][now][(row + i) * GROUP_ROWS];
                const Ints sum = lanes_add(lanes_load(products), start[s]);
                scaled = s ? lanes_fma(lanes_sum_value(sum), scale[g][s], scaled)
                           : scaled_sum(format, sum, scale[g][s]);
                if (has_minimum(format)) total = lanes_fma(minimum[g][s], shift[s], total);
            }
            lanes_store(totals, lanes_fma(scaled, step_of_token, total));
        }
    }
}

/* Adds one unit's products to totals, like add_wide_unit. The last tile of tokens overlaps the one
 * before if the width is not a multiple of 16. While the sums of one tile are added to the totals,
 * those of the next are computed. */
INLINE void add_tiled_unit(const Format format, const int width, const uint8_t *const unit[2],
                           const uint8_t *x, const Floats *const scale[2],
                           const Floats *const minimum[2], float *totals) {
    const float *step = (const float *)(x + width * UNIT_COLUMNS);
    const int last = width - TILE_TOKENS;
    TileSums sums;
    load_weight_tiles(format, unit);
    multiply_tiles(format, x, &sums, 0);
    for (int t = 0, first = 0, now = 0; t < width; now ^= 1) {
        const int next = first + TILE_TOKENS < last ? first + TILE_TOKENS : last;
        if (first < last) multiply_tiles(format, x + next * UNIT_COLUMNS, &sums, now ^ 1);
        for (; t < first + TILE_TOKENS; t += TOKENS_AT_ONCE)
            add_tile_rows(format, &sums, now, t - first, t, width, step, scale, minimum,
                          totals + t * 2 * GROUP_ROWS);
        first = next;
    }
}

/* totals (width, 2 * GROUP_ROWS) += some columns of a panel times those of two groups. */
INLINE void multiply_tiled_format(const Format format, const uint8_t *first, const uint8_t *second,
                                  const uint8_t *x, const int width, int64_t columns,
                                  const int units, float *totals) {
    const int step = is_grouped(format) ? 0 : unit_scales(format);
    const int bytes = unit_bytes(code_bits(format));
    Floats scale[2][16], minimum[2][16];
    for (int64_t unit = 0; unit < columns / UNIT_COLUMNS; unit++) {
        const int u = (int)(unit % units) * step;
        if (unit % units == 0) {
            load_scales(format, first, 0, scale[0], minimum[0]);
            load_scales(format, second, 0, scale[1], minimum[1]);
            first += scale_bytes(format);
            second += scale_bytes(format);
        }
        add_tiled_unit(format, width, (const uint8_t *const[]){first, second}, x,
                       (const Floats *const[]){scale[0] + u, scale[1] + u},
                       (const Floats *const[]){minimum[0] + u, minimum[1] + u}, totals);
        first += bytes;
        second += bytes;
        x += panel_unit_bytes(format, width);
    }
}

#define MULTIPLY_TILED(FORMAT)                                                                   \
    static __attribute__((noinline)) void multiply_tiled_##FORMAT(                               \
        const uint8_t *first, const uint8_t *second, const void *panel, int width,               \
        int64_t columns, int units, float *totals) {                                             \
        multiply_tiled_format(FORMAT, first, second, panel, width, columns,                      \
                              is_grouped(FORMAT) ? units : block_units(FORMAT), totals);         \
    }
#define TILED_KERNEL(FORMAT) [FORMAT] = multiply_tiled_##FORMAT,

EACH_FORMAT(MULTIPLY_TILED)

#include "gemm/float_tiles.inc.h"

void multiply_tiled(Format format, const uint8_t *first, const uint8_t *second, const void *panel,
                    int width, int64_t columns, float *totals) {
    static void (*const kernels[])(const uint8_t *, const uint8_t *, const void *, int, int64_t,
                                   int, float *) = {EACH_FORMAT(TILED_KERNEL)
                                                        EACH_FLOAT_TILED(TILED_KERNEL)};
    if (is_float(format)) configure_float_tiles(TILE_TOKENS);
    else configure_tiles(unit_scales(format));
    kernels[kernel_format(format)](first, second, panel, width, columns, block_units(format),
                                   totals);
    tiles_release();
}

int64_t multiply_tile_registers(Factors factors, int64_t rounds) {
    configure_float_tiles(TILE_TOKENS);
    rounds /= LINE; /* each is that much longer than of other registers */
    for (int64_t round = 0; round < rounds && factors == CODES; round++) {
        tile_dot(0, 4, 6);
        tile_dot(1, 4, 6);
        tile_dot(2, 4, 6);
        tile_dot(3, 4, 6);
    }
    for (int64_t round = 0; round < rounds && factors != CODES; round++) {
        tile_dot_bf16(0, 4, 6);
        tile_dot_bf16(1, 4, 6);
        tile_dot_bf16(2, 4, 6);
        tile_dot_bf16(3, 4, 6);
    }
    tiles_release();
    return rounds * 4 * TILE_TOKENS * GROUP_ROWS * LINE / (factors == CODES ? 1 : 2);
}

/* Products of float formats but F32 by AMX's tiles of bf16; included by tiles.inc.h.
 *
 * A tile of activations is 16 tokens and a unit, as they lie in a panel. A tile of weights is a unit
 * of a group, a line for each pair of columns, as BF16 is stored. BF16 weights are multiplied with
 * activations that are rounded to bf16, with any number of tokens, so that no result depends on it.
 *
 * All other weights and their activations are sums of two bf16, which have 16 bits; F16 has fewer.
 * Of the four products that of the two low parts is left out. Relative errors are then 4e-6 in tests,
 * where one bf16 for each would make them 2e-3. With few tokens these weights are multiplied by
 * matmul.inc.h as float32: to decode them for tiles would take longer than to read them.
 *
 * Two tiles of tokens times two groups are summed at once, so that each tile that is loaded serves
 * two products. Some units of weights are decoded once for all tokens of a panel, and stay in the
 * first-level cache. Cycles for 32 of 128 tokens, two groups and one unit, as bounds from counts on
 * Sapphire Rapids (as in tiles.inc.h):
 *
 *                                     BF16   F16   FP8   NF4
 *   matmul.inc.h: vector operations    512  1024  1024  1024
 *   here:         tile products         64   192   192   192
 *                 vector operations      0    72    90    80
 *                 loads                 36    80    82    76
 *                 stores                 8    32    40    32
 *
 * On a virtual Xeon with AMX (4096 x 4096, 512 tokens) BF16 reaches 34 % of the peak of tiles with one
 * thread, 8 times the products of matmul.inc.h and 1.25 times torch's; F16, FP8 and NF4 46 to 49 % of
 * a third of that peak, 2.1 to 2.6 times matmul.inc.h. Loads of tiles that miss the first-level cache
 * are the likely rest.
 */
#define TILE_BYTES (16 * LINE)
#define WEIGHT_TILES 8 /* of a group at once: 4 units of two tiles are whole blocks */
#define TOTALS_BYTES (2 * GROUP_ROWS * sizeof(float)) /* of a token */

/* Tiles 0 to 3 are the sums of both groups, for each tile of `tokens`; 4 and 5 the activations; 6 and
 * 7 the weights of each group. */
INLINE void configure_float_tiles(const int tokens) {
    TileShapes shapes = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        shapes.rows[tile] = (uint8_t)(tile < 6 ? tokens : UNIT_COLUMNS / 2);
        shapes.row_bytes[tile] = LINE;
    }
    tiles_configure(&shapes);
}

/* Writes a line of two tiles: the high and the low parts of two columns, rounded to nearest; the
 * high ones by float operations (Veltkamp's), which lose no NaN. */
INLINE void split_columns(const Floats weights[2], uint8_t *high, uint8_t *low) {
    const Ints mask = lanes_int((int32_t)0xffff0000);
    Ints highs[2], lows[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const Floats scaled = lanes_mul(weights[i], lanes_float(0x1p16f + 1));
        const Floats rounded = lanes_sub_floats(scaled, lanes_sub_floats(scaled, weights[i]));
        const Floats rest = lanes_sub_floats(weights[i], rounded);
        highs[i] = lanes_as_ints(rounded);
        lows[i] = lanes_add(lanes_as_ints(rest), lanes_int(0x8000));
    }
    const Ints high_line = lanes_or_masked(lanes_shift_right(highs[0], 16), highs[1], mask);
    const Ints low_line = lanes_or_masked(lanes_shift_right(lows[0], 16), lows[1], mask);
    memcpy(high, &high_line, LINE);
    memcpy(low, &low_line, LINE);
}

/* Columns 2 * line and 2 * line + 1 of a unit, not scaled; FP8 is in columns of f16. */
INLINE void load_columns(const Format format, const uint8_t *unit, const int line,
                         Floats weights[2]) {
    if (format == NF4_32) {
        const Ints codes = lanes_load(unit + line % 8 / 2 * LINE);
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++)
            weights[i] = lanes_table(
                nf4_values, lanes_shift_right(codes, 8 * (line % 2 * 2 + i) + line / 8 * 4));
    } else {
        load_two_columns(F16, unit + line * LINE, 0, weights);
    }
}

/* Writes two tiles for each of some units, whole blocks; returns where their weights end. */
INLINE const uint8_t *decode_tiles(const Format format, const uint8_t *block, const int count,
                                   const int units, uint8_t *tiles) {
    const int bytes = format == F16 ? TILE_BYTES : unit_bytes(code_bits(format));
    Floats scale = lanes_zero();
    for (int u = 0; u < count; u++, block += bytes, tiles += 2 * TILE_BYTES) {
        _Alignas(LINE) uint16_t halves[UNIT_COLUMNS * GROUP_ROWS];
        if (format != F16 && u % units == 0) {
            prefetch_line(block);
            scale = lanes_load_floats((const float *)block);
            if (format == FP8_32) scale = lanes_mul(scale, lanes_float(256));
            block += scale_bytes(format);
        }
#pragma GCC unroll 16
        for (int i = 0; i < bytes; i += LINE) {
            prefetch_line(block + i);
            if (format == FP8_32) widen_fp8(block + i, halves + 4 * GROUP_ROWS / LINE * i);
        }
#pragma GCC unroll 16
        for (int line = 0; line < UNIT_COLUMNS / 2; line++) {
            Floats weights[2];
            load_columns(format, format == FP8_32 ? (const uint8_t *)halves : block, line, weights);
#pragma GCC unroll 2
            for (int i = 0; i < 2 && format != F16; i++) weights[i] = lanes_mul(weights[i], scale);
            split_columns(weights, tiles + line * LINE, tiles + TILE_BYTES + line * LINE);
        }
    }
    return block;
}

INLINE void load_weight_pair(const uint8_t *const weights[2], int64_t offset) {
    tile_load(6, weights[0] + offset, LINE);
    tile_load(7, weights[1] + offset, LINE);
}

/* The activations at x for one or two tiles of tokens. */
INLINE void load_token_tiles(const int count, const uint8_t *x) {
    tile_load(4, x, LINE);
    if (count > 1) tile_load(5, x + TILE_BYTES, LINE);
}

INLINE void multiply_loaded_tiles(const int count) {
    tile_dot_bf16(0, 4, 6);
    tile_dot_bf16(1, 4, 7);
    if (count == 1) return;
    tile_dot_bf16(2, 5, 6);
    tile_dot_bf16(3, 5, 7);
}

/* Adds the products of some units with one or two tiles of tokens to their totals. Weights and
 * activations are one bf16, or the sums of two `parts`. */
INLINE void add_float_tiles(const int count, const int parts, const uint8_t *const weights[2],
                            const uint8_t *x, const int width, const int units,
                            const bool prefetches, float *totals) {
    float *const next = totals + TILE_TOKENS * 2 * GROUP_ROWS;
    tile_load(0, totals, TOTALS_BYTES);
    tile_load(1, totals + GROUP_ROWS, TOTALS_BYTES);
    if (count > 1) tile_load(2, next, TOTALS_BYTES);
    if (count > 1) tile_load(3, next + GROUP_ROWS, TOTALS_BYTES);
    for (int u = 0; u < units; u++, x += parts * width * LINE) {
        const int64_t offset = u * parts * TILE_BYTES;
        for (int i = 0; i < TILE_BYTES && prefetches; i += LINE) {
            prefetch_line(weights[0] + offset + i);
            prefetch_line(weights[1] + offset + i);
        }
        load_token_tiles(count, x);
        if (parts > 1) {
            load_weight_pair(weights, offset + TILE_BYTES);
            multiply_loaded_tiles(count);
        }
        load_weight_pair(weights, offset);
        multiply_loaded_tiles(count);
        if (parts > 1) {
            load_token_tiles(count, x + width * LINE);
            multiply_loaded_tiles(count);
        }
    }
    tile_store(0, totals, TOTALS_BYTES);
    tile_store(1, totals + GROUP_ROWS, TOTALS_BYTES);
    if (count > 1) tile_store(2, next, TOTALS_BYTES);
    if (count > 1) tile_store(3, next + GROUP_ROWS, TOTALS_BYTES);
}

/* totals (width, 2 * GROUP_ROWS) += some columns of a panel times those of two groups. */
INLINE void multiply_float_tiles(const Format format, const uint8_t *first, const uint8_t *second,
                                 const uint8_t *x, const int width, int64_t columns,
                                 const int units, float *totals) {
    const int parts = format == BF16_PAIRS ? 1 : 2, most = WEIGHT_TILES / parts;
    _Alignas(LINE) uint8_t tiles[2][WEIGHT_TILES * TILE_BYTES];
    for (int64_t rest = divide_up(columns, UNIT_COLUMNS); rest > 0; rest -= most) {
        const int count = (int)at_most(most, rest);
        const uint8_t *const stored[2] = {first, second}, *const decoded[2] = {tiles[0], tiles[1]};
        if (parts > 1) {
            first = decode_tiles(format, first, count, units, tiles[0]);
            second = decode_tiles(format, second, count, units, tiles[1]);
        } else {
            first += count * TILE_BYTES;
            second += count * TILE_BYTES;
        }
        const uint8_t *const *weights = parts > 1 ? decoded : stored;
        int t = 0;
        for (; t + TILE_TOKENS < width; t += 2 * TILE_TOKENS)
            add_float_tiles(2, parts, weights, x + t * LINE, width, count, parts == 1 && t == 0,
                            totals + t * 2 * GROUP_ROWS);
        if (t < width)
            add_float_tiles(1, parts, weights, x + t * LINE, width, count, false,
                            totals + t * 2 * GROUP_ROWS);
        x += count * parts * width * LINE;
    }
}

/* The same for BF16_SUBNORMAL, in float arithmetic: the operations of multiply_pairs. */
INLINE void add_subnormal_pairs(const uint8_t *first, const uint8_t *second, const uint8_t *x,
                                const int width, int64_t columns, float *totals) {
    const uint8_t *const groups[2] = {first, second};
    for (int t = 0; t < width; t += TOKENS_AT_ONCE, totals += TOKENS_AT_ONCE * 2 * GROUP_ROWS)
        for (int g = 0; g < 2; g++) {
            const uint8_t *line = groups[g];
            const uint16_t *pairs = (const uint16_t *)x + t * UNIT_COLUMNS;
            float *const rows = totals + g * GROUP_ROWS;
            Floats total[TOKENS_AT_ONCE];
#pragma GCC unroll 4
            for (int i = 0; i < TOKENS_AT_ONCE; i++)
                total[i] = lanes_load_floats(rows + i * 2 * GROUP_ROWS);
            for (int64_t column = 0; column < columns; column += UNIT_COLUMNS) {
                for (int j = 0; j < UNIT_COLUMNS; j += 2, line += LINE)
#pragma GCC unroll 4
                    for (int i = 0; i < TOKENS_AT_ONCE; i++)
                        total[i] = add_pair(false, total[i], line, pairs + i * UNIT_COLUMNS + j);
                pairs += width * UNIT_COLUMNS;
            }
#pragma GCC unroll 4
            for (int i = 0; i < TOKENS_AT_ONCE; i++) lanes_store(rows + i * 2 * GROUP_ROWS, total[i]);
        }
}

#define EACH_FLOAT_TILED(CASE)                                                                   \
    CASE(F16) CASE(FP8_32) CASE(NF4_32) CASE(BF16_PAIRS) CASE(BF16_SUBNORMAL)
#define MULTIPLY_FLOAT_TILED(FORMAT)                                                             \
    static __attribute__((noinline)) void multiply_tiled_##FORMAT(                               \
        const uint8_t *first, const uint8_t *second, const void *panel, int width,               \
        int64_t columns, int units, float *totals) {                                             \
        if (FORMAT == BF16_SUBNORMAL)                                                            \
            add_subnormal_pairs(first, second, panel, width, columns, totals);                   \
        else                                                                                     \
            multiply_float_tiles(FORMAT, first, second, panel, width, columns, units, totals);   \
    }

EACH_FLOAT_TILED(MULTIPLY_FLOAT_TILED)

void multiply_tiled_pairs(const uint8_t *group, const void *panel, int width, int64_t columns,
                          float *out) {
    const uint8_t *x = panel;
    configure_float_tiles(width);
    tile_zero(0);
    for (int64_t column = 0; column < columns; column += UNIT_COLUMNS, x += width * LINE) {
#pragma GCC unroll 16
        for (int i = 0; i < TILE_BYTES; i += LINE) prefetch_line(group + i);
        tile_load(4, x, LINE);
        tile_load(6, group, LINE);
        tile_dot_bf16(0, 4, 6);
        group += TILE_BYTES;
    }
    tile_store(0, out, GROUP_ROWS * sizeof(float));
    tiles_release();
}

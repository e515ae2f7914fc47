/* Products of weights whose codes stand for floats, FP8 and NF4; included by matmul.inc.h.
 *
 * A line is four columns of FP8 or eight of NF4. The products of a row are summed in several chains,
 * since those of one chain wait for each other:
 *
 *   FP8  2 chains  columns 0 and 1 of each line; columns 2 and 3
 *   NF4  4 chains  nibbles c and c + 4 of each lane
 *
 * Few tokens have all chains in registers at once. More tokens are multiplied chain after chain, by
 * the same operations in the same order for each token.
 */

/* The values of the codes, those of bitsandbytes. */
static const float nf4_values[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

#define MOST_CHAINS 4
#define MOST_UNITS 4 /* of a block */
INLINE int chains_of(const Format format) { return format == NF4_32 ? 4 : 2; }

/* E4M3 codes of a line as f16, which are the values divided by 2^8, by column and row: as f16 their
 * bits have the same order and meaning. Reading them from memory converts them faster than from
 * registers, and all chains and parts of a line do it. */
INLINE void widen_fp8(const uint8_t *line, uint16_t halves[4 * GROUP_ROWS]) {
    typedef int16_t __attribute__((may_alias)) Word;
    const Word *words = (const Word *)line;
    for (int i = 0; i < 2 * GROUP_ROWS; i++) {
        const int16_t low = (int16_t)(uint16_t)((uint16_t)words[i] << 8);
        halves[i] = (uint16_t)(words[i] >> 1 & 0xbf80);
        halves[2 * GROUP_ROWS + i] = (uint16_t)(low >> 1 & 0xbf80);
    }
}

/* The weights of a chain's two columns in a line; for FP8 `line` has four columns of f16. */
INLINE void load_chain(const Format format, const uint8_t *line, const int part, const int chain,
                       Floats weights[2]) {
    if (format == FP8_32) {
        const uint8_t *column = line + 2 * (2 * chain * GROUP_ROWS + part * LANES);
        weights[0] = lanes_load_f16(column);
        weights[1] = lanes_load_f16(column + 2 * GROUP_ROWS);
        return;
    }
    const Ints codes = lanes_load(line + part * LANES * 4);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        weights[i] = lanes_table(nf4_values, lanes_shift_right(codes, 4 * chain + 16 * i));
}

/* Which column of a unit is number `i` of a chain's two in a line. */
INLINE int column_of_chain(const Format format, const int line, const int chain, const int i) {
    const int nibble = chain + 4 * i;
    return 4 * line + (format == FP8_32 ? 2 * chain + i : nibble / 2 + 16 * (nibble & 1));
}

/* The sums of a block for a few chains, by part of a line, chain and token. */
typedef Floats ChainSums[PARTS][MOST_CHAINS][NARROW_TOKENS];

/* Adds the products of line `l` of a unit in `count` chains from `first` on. */
INLINE void add_line(const Format format, const int width, const int first, const int count,
                     const uint8_t *line, const float *x, const int l, const int first_part,
                     const int parts, ChainSums sum) {
    Floats weights[PARTS][2];
#pragma GCC unroll 4
    for (int c = 0; c < count; c++) {
#pragma GCC unroll 4
        for (int p = 0; p < parts; p++)
            load_chain(format, line, first_part + p, first + c, weights[p]);
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            const float *column = x + column_of_chain(format, l, first + c, i);
#pragma GCC unroll 16
            for (int t = 0; t < width; t++)
#pragma GCC unroll 4
                for (int p = 0; p < parts; p++)
                    sum[p][c][t] = lanes_fma(weights[p][i], lanes_float(column[t * UNIT_COLUMNS]),
                                             sum[p][c][t]);
        }
    }
}

/* Adds a block's products in `count` chains from `first` on to out[t], which is in memory so that
 * the sums have all registers. */
INLINE void add_chains(const Format format, const int width, const int first, const int count,
                       const uint8_t *line, const float *x, const int units, const int first_part,
                       const int parts, const Floats *scale, float *out) {
    const int lines = code_bits(format), line_bytes = format == FP8_32 ? 2 * LINE : LINE;
    ChainSums sum;
#pragma GCC unroll 4
    for (int p = 0; p < parts; p++)
#pragma GCC unroll 4
        for (int c = 0; c < count; c++)
#pragma GCC unroll 16
            for (int t = 0; t < width; t++) sum[p][c][t] = lanes_zero();
    for (int u = 0; u < units; u++, x += width * UNIT_COLUMNS)
#pragma GCC unroll 8
        for (int l = 0; l < lines; l++, line += line_bytes) {
            if (format == NF4_32 && !first && !first_part) prefetch_line(line);
            add_line(format, width, first, count, line, x, l, first_part, parts, sum);
        }
#pragma GCC unroll 4
    for (int p = 0; p < parts; p++)
#pragma GCC unroll 16
        for (int t = 0; t < width; t++) {
            float *const rows = out + t * GROUP_ROWS + (first_part + p) * LANES;
            Floats total = lanes_load_floats(rows);
#pragma GCC unroll 4
            for (int c = 0; c < count; c++) total = lanes_fma(sum[p][c][t], scale[p], total);
            lanes_store(rows, total);
        }
}

#ifdef HAS_LANES_FP8
/* FP8 with few tokens where a processor can look the codes up: the operations of add_chains, but
 * weights and sums stay in registers. */
INLINE void multiply_fp8(const int width, const uint8_t *block, const float *x, int64_t columns,
                         const int units, float *out) {
    Floats total[NARROW_TOKENS];
#pragma GCC unroll 2
    for (int t = 0; t < width; t++) total[t] = lanes_zero();
    for (int64_t column = 0; column < columns; column += units * UNIT_COLUMNS) {
        Floats sum[2][NARROW_TOKENS], weights[4];
        prefetch_line(block);
        const Floats scale = lanes_mul(lanes_load_floats((const float *)block), lanes_float(256));
        block += scale_bytes(FP8_32);
#pragma GCC unroll 2
        for (int t = 0; t < width; t++) sum[0][t] = sum[1][t] = lanes_zero();
        for (int u = 0; u < units; u++, x += width * UNIT_COLUMNS)
#pragma GCC unroll 8
            for (int l = 0; l < UNIT_COLUMNS / 4; l++, block += LINE) {
                prefetch_line(block);
                lanes_load_fp8(block, weights);
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++)
#pragma GCC unroll 2
                    for (int t = 0; t < width; t++)
                        sum[i / 2][t] = lanes_fma(
                            weights[i], lanes_float(x[t * UNIT_COLUMNS + 4 * l + i]), sum[i / 2][t]);
            }
#pragma GCC unroll 2
        for (int t = 0; t < width; t++)
            total[t] = lanes_fma(sum[1][t], scale, lanes_fma(sum[0][t], scale, total[t]));
    }
#pragma GCC unroll 2
    for (int t = 0; t < width; t++) lanes_store(out + t * GROUP_ROWS, total[t]);
}
#endif

INLINE void multiply_float_codes(const Format format, const int width, const uint8_t *block,
                                 const float *x, int64_t columns, const int units, float *out) {
#ifdef HAS_LANES_FP8
    if (format == FP8_32 && width <= 2 && lanes_have_fp8()) {
        multiply_fp8(width, block, x, columns, units, out);
        return;
    }
#endif
    const int parts = parts_at_once(width), chains = chains_of(format);
    const int at_once = parts * chains * width <= 8 ? chains : 1;
    const int lines = units * code_bits(format);
    __attribute__((aligned(LINE))) uint16_t halves[MOST_UNITS * UNIT_COLUMNS * GROUP_ROWS];
    Floats scale[PARTS];
    for (int i = 0; i < width * GROUP_ROWS; i++) out[i] = 0;
    for (int64_t column = 0; column < columns; column += units * UNIT_COLUMNS) {
        prefetch_line(block);
        const float *scales = (const float *)block;
        const uint8_t *line = block += scale_bytes(format);
        for (int l = 0; format == FP8_32 && l < lines; l++) {
            prefetch_line(block + l * LINE);
            widen_fp8(block + l * LINE, halves + l * 4 * GROUP_ROWS);
        }
        if (format == FP8_32) line = (const uint8_t *)halves;
        for (int first_part = 0; first_part < PARTS; first_part += parts) {
#pragma GCC unroll 4
            for (int p = 0; p < parts; p++) {
                scale[p] = lanes_load_floats(scales + (first_part + p) * LANES);
                if (format == FP8_32) scale[p] = lanes_mul(scale[p], lanes_float(256));
            }
#pragma GCC unroll 4
            for (int first = 0; first < chains; first += at_once)
                add_chains(format, width, first, at_once, line, x, units, first_part, parts, scale,
                           out);
        }
        block += lines * LINE;
        x += units * width * UNIT_COLUMNS;
    }
}

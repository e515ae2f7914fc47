/* Products of packed weights with panels of activations; included once per instruction set. */
#include "gemm/prefetch.h"
#include "gemm/weights.h"

#define PARTS (GROUP_ROWS / LANES)

INLINE Ints shift_to(const Ints v, const int from, const int to) {
    return from > to ? lanes_shift_right(v, from - to) : lanes_shift_left(v, to - from);
}

INLINE Ints quad_nibbles(const uint8_t *unit, const int k) {
    Ints line = lanes_load(unit + LINE * (k & 3));
    return lanes_and(k < 4 ? line : lanes_shift_right(line, 4), lanes_byte(0x0f));
}

/* The codes of quad k of a unit, one byte each. */
INLINE Ints quad_codes(const int bits, const uint8_t *unit, const int k) {
    Ints line;
    switch (bits) {
    case 2:
        line = lanes_load(unit + LINE * (k >> 2));
        return lanes_and(lanes_shift_right(line, 2 * (k & 3)), lanes_byte(0x03));
    case 3:
        line = lanes_load(unit + LINE * 2);
        return lanes_or_masked(quad_codes(2, unit, k), shift_to(line, k, 2), lanes_byte(0x04));
    case 4:
        return quad_nibbles(unit, k);
    case 5:
        line = lanes_load(unit + LINE * 4);
        return lanes_or_masked(quad_nibbles(unit, k), shift_to(line, k, 4), lanes_byte(0x10));
    case 6:
        line = shift_to(lanes_load(unit + LINE * (4 + (k >> 2))), 2 * (k & 3), 4);
        return lanes_or_masked(quad_nibbles(unit, k), line, lanes_byte(0x30));
    default:
        return lanes_bytes(lanes_load(unit + LINE * k));
    }
}

/* Twice the values of the codes of MXFP4, plus 12; the largest is that of code 7. */
static const uint8_t fp4_codes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/* The codes of quad k as the products need them. */
INLINE Ints product_codes(const Format format, const uint8_t *unit, const int k) {
    Ints codes = quad_codes(code_bits(format), unit, k);
    return format == MXFP4 ? lanes_lookup(fp4_codes, codes) : codes;
}

#ifndef HAS_LANES_MOVE_BYTE
/* Byte `from` of each lane as its byte `to`, and zeros. */
INLINE Ints lanes_move_byte(Ints a, const int from, const int to) {
    return lanes_and(shift_to(a, 8 * from, 8 * to), lanes_int((int32_t)(0xffu << 8 * to)));
}
#endif

/* Byte j of the 16 that four lines store for each row, as floats; signed ones are multiplied with
 * 2^24, since their sign bit has to become that of the lane. */
#define SIGNED_SCALE 0x1p-24f
INLINE Floats small_scale(const Ints lines[4], const int j, const bool is_signed) {
    return lanes_convert(lanes_move_byte(lines[j >> 2], j & 3, is_signed ? 3 : 0));
}

INLINE void load_six_bits(const uint8_t *block, Ints lines[4]) {
    Ints a = lanes_load(block), b = lanes_load(block + LINE), c = lanes_load(block + 2 * LINE);
    lines[0] = lanes_and(a, lanes_byte(0x3f));
    lines[1] = lanes_and(b, lanes_byte(0x3f));
    lines[2] = lanes_and(c, lanes_byte(0x3f));
    lines[3] = lanes_and(lanes_shift_right(a, 6), lanes_byte(0x03));
    lines[3] = lanes_or_masked(lines[3], lanes_shift_right(b, 4), lanes_byte(0x0c));
    lines[3] = lanes_or_masked(lines[3], lanes_shift_right(c, 2), lanes_byte(0x30));
}

/* The scales of a block, and for formats with a minimum the negated minima, in the order of
 * columns. `part` selects LANES rows; `block` points at the first of their lanes. */
INLINE void load_scales(const Format format, const uint8_t *block, const int part,
                        Floats scale[16], Floats minimum[16]) {
    const uint8_t *halves = block - part * LANES * 2; /* two bytes a row, not four */
    Ints lines[4];
    Floats d, negated;
    switch (format) {
    case Q4_0: case Q5_0: case Q8_0:
        scale[0] = lanes_load_f16(halves);
        break;
    case Q4_1: case Q5_1:
        scale[0] = lanes_load_f16(halves);
        minimum[0] = lanes_load_f16(halves + 2 * GROUP_ROWS);
        break;
    case MXFP4: /* half of 2^(e - 127); 0 for e = 0, where it would be 2^-128 */
        lines[0] = lanes_shift_left(lanes_load_bytes(block - part * LANES * 3), 23);
        scale[0] = lanes_mul(lanes_as_floats(lines[0]), lanes_float(0.5f));
        break;
    case INT2_32: case INT3_32: case INT4_32: case INT8_32:
        scale[0] = lanes_load_floats((const float *)block);
        minimum[0] = lanes_load_floats((const float *)(block + 4 * GROUP_ROWS));
        if (format == INT8_32)
            minimum[0] = lanes_fma(scale[0], lanes_float(-BYTE_OFFSET), minimum[0]);
        break;
    case Q4_K: case Q5_K:
        load_six_bits(block, lines);
        d = lanes_load_f16(halves + 12 * GROUP_ROWS);
        negated = lanes_mul(lanes_load_f16(halves + 14 * GROUP_ROWS), lanes_float(-1));
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            scale[j] = lanes_mul(d, small_scale(lines, j, false));
            minimum[j] = lanes_mul(negated, small_scale(lines, j + 8, false));
        }
        break;
    case Q3_K:
        load_six_bits(block, lines);
        d = lanes_load_f16(halves + 12 * GROUP_ROWS);
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++)
            scale[j] =
                lanes_mul(d, lanes_add_floats(small_scale(lines, j, false), lanes_float(-32)));
        break;
    case Q6_K:
        for (int i = 0; i < 4; i++) lines[i] = lanes_load(block + LINE * i);
        d = lanes_mul(lanes_load_f16(halves + 16 * GROUP_ROWS), lanes_float(SIGNED_SCALE));
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++) scale[j] = lanes_mul(d, small_scale(lines, j, true));
        break;
    case Q2_K:
        d = lanes_load_f16(halves + 16 * GROUP_ROWS);
        negated = lanes_mul(lanes_load_f16(halves + 18 * GROUP_ROWS), lanes_float(-1));
        for (int i = 0; i < 4; i++)
            lines[i] = lanes_and(lanes_load(block + LINE * i), lanes_byte(0x0f));
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++) scale[j] = lanes_mul(d, small_scale(lines, j, false));
        for (int i = 0; i < 4; i++)
            lines[i] = lanes_and(lanes_shift_right(lanes_load(block + LINE * i), 4),
                                 lanes_byte(0x0f));
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++) minimum[j] = lanes_mul(negated, small_scale(lines, j, false));
        break;
    default:
        break;
    }
}

/* With few tokens all parts of a line are multiplied before the next line, so that memory is read
 * once. The sums of more tokens occupy all registers; the next pass, or the next panel of tokens,
 * reads the second-level cache. */
INLINE bool reads_once(const int width) { return width <= 2; }
INLINE int parts_at_once(const int width) { return reads_once(width) ? PARTS : 1; }

/* Prefetches memory far ahead into the second-level cache, and later from there into the first: a
 * prefetch into the first-level cache at once would occupy one of its few line fill buffers for
 * long. The compiler does not move assembler statements, so that prefetches stay between the loads;
 * a burst of them would stall. */
INLINE void prefetch_line(const uint8_t *line) {
#if defined(__x86_64__)
    __asm__ volatile("prefetcht1 %0" : : "m"(line[prefetch_distance.far]));
    __asm__ volatile("prefetcht0 %0" : : "m"(line[prefetch_distance.near]));
#else
    __builtin_prefetch(line + prefetch_distance.far, 0, 2);
    __builtin_prefetch(line + prefetch_distance.near);
#endif
}

/* The same for codes, which may pass by the further caches if they are read once. */
INLINE void prefetch_codes(const uint8_t *line, const int width) {
#if defined(__x86_64__)
    if (reads_once(width) && prefetch_distance.once) {
        __asm__ volatile("prefetchnta %0" : : "m"(line[prefetch_distance.once]));
        return;
    }
#endif
    (void)width;
    prefetch_line(line);
}

#include "gemm/float_codes.inc.h"

/* The sum times a scale of 16 bits, or of 32 in grouped formats. */
INLINE Floats scaled_sum(const Format format, const Ints sum, const Floats scale) {
    return is_grouped(format) ? lanes_mul(lanes_sum_value(sum), scale)
                              : lanes_sum_times(sum, scale);
}

#ifdef HAS_LANES_PAIRS
/* How many quads' products of one scale fit in sums of 16 bits: codes of activations are at most
 * 127. */
INLINE int run_quads(const Format format) {
    const int largest = format == MXFP4 ? fp4_codes[7] : (1 << code_bits(format)) - 1;
    const int most = INT16_MAX / (2 * 127 * largest), quads = 8 / unit_scales(format);
    return at_most(most >= 8 ? 8 : most >= 4 ? 4 : most >= 2 ? 2 : 1, quads);
}

/* Adds the products of quad i, which are summed in `pairs` until a run ends. */
INLINE void add_quad(const Format format, const int i, Ints codes, const int8_t *four, Ints *pairs,
                     Ints *sum) {
    const int run = run_quads(format);
    if (code_bits(format) == 8) {
        *sum = lanes_dot_bytes(*sum, codes, four);
        return;
    }
    const Ints products = lanes_pairs(codes, four);
    *pairs = i % run ? lanes_add_pairs(*pairs, products) : products;
    if (i % run == run - 1) *sum = lanes_add(*sum, lanes_sum_pairs(*pairs));
}
#else
INLINE void add_quad(const Format format, const int i, Ints codes, const int8_t *four, Ints *pairs,
                     Ints *sum) {
    (void)i, (void)pairs;
    *sum = code_bits(format) == 8 ? lanes_dot_bytes(*sum, codes, four)
                                  : lanes_dot(*sum, codes, four);
}
#endif

/* Adds one unit's products to total[t]. `x` is the unit in a panel (activations.inc.h). */
INLINE void add_unit(const Format format, const int width, const uint8_t *unit, const uint8_t *x,
                     const Floats *scale, const Floats *minimum, const bool prefetches,
                     Floats *total) {
    const int bits = code_bits(format), scales = unit_scales(format), quads = 8 / scales;
    const int8_t *quads_of_x = (const int8_t *)x;
    const float *step = (const float *)(x + width * UNIT_COLUMNS);
    const int32_t *correction = (const int32_t *)(step + width);
    const float *shift = (const float *)correction;
    Floats scaled[NARROW_TOKENS];
#pragma GCC unroll 2
    for (int s = 0; s < scales; s++) {
        Ints sum[NARROW_TOKENS], pairs[NARROW_TOKENS];
#pragma GCC unroll 16
        for (int t = 0; t < width; t++)
            sum[t] = lanes_int(has_minimum(format) ? SUM_START : correction[s * width + t]);
#pragma GCC unroll 8
        for (int i = 0; i < quads; i++) {
            const int k = s * quads + (scales == 1 ? (i >> 1) + 4 * (i & 1) : i);
            const int line = (s * quads + i) * bits / 8, next = (s * quads + i + 1) * bits / 8;
            if (next > line && prefetches) prefetch_codes(unit + LINE * line, width);
            Ints codes = product_codes(format, unit, k);
#pragma GCC unroll 16
            for (int t = 0; t < width; t++)
                add_quad(format, i, codes, quads_of_x + t * UNIT_COLUMNS + 4 * k, &pairs[t],
                         &sum[t]);
        }
#pragma GCC unroll 16
        for (int t = 0; t < width; t++)
            scaled[t] = s ? lanes_fma(lanes_sum_value(sum[t]), scale[s], scaled[t])
                          : scaled_sum(format, sum[t], scale[s]);
    }
#pragma GCC unroll 16
    for (int t = 0; t < width; t++) {
#pragma GCC unroll 2
        for (int s = 0; s < scales && has_minimum(format); s++)
            total[t] = lanes_fma(minimum[s], lanes_float(shift[s * width + t]), total[t]);
        total[t] = lanes_fma(scaled[t], lanes_float(step[t]), total[t]);
    }
}

/* Units that are unrolled, by measurement: with few tokens that keeps all scales in registers, where
 * there are enough of them. */
INLINE int unrolled_units(const Format format, const int width) {
    if (PARTS > 1 || width > 2 || is_grouped(format)) return 1;
    return format == Q6_K ? 2 : block_units(format);
}

/* Adds the products of one block to total[t]. */
INLINE void add_block(const Format format, const int width, const uint8_t *block, const uint8_t *x,
                      const int units, const int part, Floats *total) {
    const int scales = is_grouped(format) ? 0 : unit_scales(format);
    const int bytes = unit_bytes(code_bits(format)), unrolled = unrolled_units(format, width);
    Floats scale[16], minimum[16];
    load_scales(format, block, part, scale, minimum);
    block += scale_bytes(format);
#pragma GCC unroll 1
    for (int rest = 0; rest < units; rest += unrolled) {
#pragma GCC unroll 8
        for (int u = rest; u < rest + unrolled; u++) {
            add_unit(format, width, block, x, scale + u * scales, minimum + u * scales, part == 0,
                     total);
            block += bytes;
            x += panel_unit_bytes(format, width);
        }
    }
}

INLINE void multiply_codes(const Format format, const int width, const uint8_t *group,
                           const uint8_t *panel, int64_t columns, const int units, float *out) {
    const int parts = parts_at_once(width);
    for (int first = 0; first < PARTS; first += parts) {
        const uint8_t *block = group, *x = panel;
        Floats total[PARTS][NARROW_TOKENS];
#pragma GCC unroll 4
        for (int i = 0; i < parts; i++)
#pragma GCC unroll 16
            for (int t = 0; t < width; t++) total[i][t] = lanes_zero();
        for (int64_t column = 0; column < columns; column += units * UNIT_COLUMNS) {
#pragma GCC unroll 8
            for (int i = 0; i < scale_bytes(format); i += LINE) prefetch_codes(block + i, width);
#pragma GCC unroll 4
            for (int i = 0; i < parts; i++)
                add_block(format, width, block + (first + i) * LANES * 4, x, units, first + i,
                          total[i]);
            block += scale_bytes(format) + units * unit_bytes(code_bits(format));
            x += units * panel_unit_bytes(format, width);
        }
#pragma GCC unroll 4
        for (int i = 0; i < parts; i++)
#pragma GCC unroll 16
            for (int t = 0; t < width; t++)
                lanes_store(out + t * GROUP_ROWS + (first + i) * LANES, total[i][t]);
    }
}

/* Two columns of weights as floats: bf16 share lanes, f16 are the halves of a line, floats two
 * lines. */
INLINE void load_two_columns(const Format format, const uint8_t *line, const int part,
                             Floats weights[2]) {
    if (format == BF16) {
        Ints both = lanes_load(line + part * LANES * 4);
        weights[0] = lanes_as_floats(lanes_shift_left(both, 16));
        weights[1] = lanes_as_floats(lanes_and(both, lanes_int((int32_t)0xffff0000)));
    } else if (format == F32) {
        weights[0] = lanes_load_floats((const float *)line + part * LANES);
        weights[1] = lanes_load_floats((const float *)(line + LINE) + part * LANES);
    } else {
        weights[0] = lanes_load_f16(line + part * LANES * 2);
        weights[1] = lanes_load_f16(line + part * LANES * 2 + LINE / 2);
    }
}

/* Adds the products of one unit of unquantized weights to total[t], in float arithmetic. */
INLINE void add_float_unit(const Format format, const int width, const uint8_t *line,
                           const float *x, const int part, Floats *total) {
    Floats weights[2];
#pragma GCC unroll 16
    for (int i = 0; i < UNIT_COLUMNS; i += 2, line += 2 * float_column_bytes(format)) {
        if (part == 0) prefetch_line(line);
        if (part == 0 && format == F32) prefetch_line(line + LINE);
        load_two_columns(format, line, part, weights);
#pragma GCC unroll 16
        for (int t = 0; t < width; t++)
#pragma GCC unroll 2
            for (int j = 0; j < 2; j++)
                total[t] = lanes_fma(weights[j], lanes_float(x[t * UNIT_COLUMNS + i + j]),
                                     total[t]);
    }
}

INLINE void multiply_floats(const Format format, const int width, const uint8_t *group,
                            const float *panel, int64_t columns, float *out) {
    const int parts = parts_at_once(width);
    for (int first = 0; first < PARTS; first += parts) {
        const uint8_t *line = group;
        const float *x = panel;
        Floats total[PARTS][NARROW_TOKENS];
#pragma GCC unroll 4
        for (int i = 0; i < parts; i++)
#pragma GCC unroll 16
            for (int t = 0; t < width; t++) total[i][t] = lanes_zero();
        for (int64_t column = 0; column < columns; column += UNIT_COLUMNS) {
#pragma GCC unroll 4
            for (int i = 0; i < parts; i++)
                add_float_unit(format, width, line, x, first + i, total[i]);
            line += UNIT_COLUMNS * float_column_bytes(format);
            x += width * UNIT_COLUMNS;
        }
#pragma GCC unroll 4
        for (int i = 0; i < parts; i++)
#pragma GCC unroll 16
            for (int t = 0; t < width; t++)
                lanes_store(out + t * GROUP_ROWS + (first + i) * LANES, total[i][t]);
    }
}

/* The same for bf16 weights and activations that are rounded to bf16: with bf16 units, which treat
 * subnormals as 0, or without. */
#ifdef HAS_LANES_DOT_BF16
INLINE Floats add_pair(const bool with_units, Floats total, const uint8_t *line,
                       const uint16_t *x) {
    Floats weights[2];
    if (with_units) return lanes_dot_bf16(total, lanes_load(line), x);
    load_two_columns(BF16, line, 0, weights);
    total = lanes_fma(weights[0], lanes_float(float_of_bf16(x[0])), total);
    return lanes_fma(weights[1], lanes_float(float_of_bf16(x[1])), total);
}

INLINE void multiply_pairs(const bool with_units, const int width, const uint8_t *line,
                           const uint16_t *x, int64_t columns, float *out) {
    Floats total[NARROW_TOKENS];
#pragma GCC unroll 16
    for (int t = 0; t < width; t++) total[t] = lanes_zero();
    for (int64_t column = 0; column < columns; column += UNIT_COLUMNS) {
#pragma GCC unroll 16
        for (int i = 0; i < UNIT_COLUMNS; i += 2, line += LINE) {
            prefetch_line(line);
#pragma GCC unroll 16
            for (int t = 0; t < width; t++)
                total[t] = add_pair(with_units, total[t], line, x + t * UNIT_COLUMNS + i);
        }
        x += width * UNIT_COLUMNS;
    }
#pragma GCC unroll 16
    for (int t = 0; t < width; t++) lanes_store(out + t * GROUP_ROWS, total[t]);
}
#endif

/* One group times one panel: out[t][row] for `width` tokens and 16 rows. */
INLINE void multiply_format(const Format format, const int width, const uint8_t *group,
                            const void *panel, int64_t columns, const int units, float *out) {
#ifdef HAS_LANES_DOT_BF16
    if (format >= BF16_PAIRS) {
        multiply_pairs(format == BF16_PAIRS, width, group, panel, columns, out);
        return;
    }
#endif
    if (is_grouped_float(format))
        multiply_float_codes(format, width, group, panel, columns, units, out);
    else if (is_float(format))
        multiply_floats(format, width, group, panel, columns, out);
    else
        multiply_codes(format, width, group, panel, columns, units, out);
}

#define MULTIPLY(FORMAT, WIDTH)                                                                  \
    static __attribute__((noinline)) void multiply_##FORMAT##_##WIDTH(                           \
        const uint8_t *group, const void *panel, int64_t columns, int units, float *out) {       \
        multiply_format(FORMAT, WIDTH, group, panel, columns,                                    \
                        is_grouped(FORMAT) ? units : block_units(FORMAT), out);                  \
    }
#define KERNEL(FORMAT, WIDTH) multiply_##FORMAT##_##WIDTH,

/* The widths of a panel. More than eight tokens need 32 registers of 16 lanes for their sums. */
#define EACH_SMALL_WIDTH(CASE, FORMAT)                                                           \
    CASE(FORMAT, 1) CASE(FORMAT, 2) CASE(FORMAT, 4) CASE(FORMAT, 8)
#if LANES == GROUP_ROWS
#define EACH_WIDTH(CASE, FORMAT) EACH_SMALL_WIDTH(CASE, FORMAT) CASE(FORMAT, 12) CASE(FORMAT, 16)
#else
#define EACH_WIDTH EACH_SMALL_WIDTH
#endif

#ifdef HAS_LANES_DOT_BF16
#define EACH_PAIRED(CASE) CASE(BF16_PAIRS) CASE(BF16_SUBNORMAL)
#else
#define EACH_PAIRED(CASE)
#endif
#define EACH_MULTIPLIED(CASE)                                                                    \
    EACH_FORMAT(CASE)                                                                           \
    CASE(F16) CASE(BF16) CASE(F32) CASE(FP8_32) CASE(NF4_32) EACH_PAIRED(CASE)

#define EACH_MULTIPLY(FORMAT) EACH_WIDTH(MULTIPLY, FORMAT)
#define EACH_KERNEL(FORMAT) [FORMAT] = {EACH_WIDTH(KERNEL, FORMAT)},

EACH_MULTIPLIED(EACH_MULTIPLY)

static void multiply(Format format, const uint8_t *group, const void *panel, int width,
                     int64_t columns, float *out) {
    static void (*const kernels[][6])(const uint8_t *, const void *, int64_t, int, float *) = {
        EACH_MULTIPLIED(EACH_KERNEL)};
    kernels[kernel_format(format)][width < 8 ? width / 2 : width / 4 + 1](
        group, panel, columns, block_units(format), out);
}

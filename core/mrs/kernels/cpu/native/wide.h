/* Products with WIDE_TOKENS tokens at a time, for prompts.
 *
 * Weights are levelled first: the codes of SPAN_COLUMNS columns of a row become bytes with one
 * step for all of them, so that what belongs to a span adds up in integers, and so do the
 * activations. A weight moves by half a step at most, 1/254 of the largest of its span; with
 * several hundred tokens the work of levelling does not count.
 *
 * A tile is two groups of rows. It holds, for each span, both groups' parts of
 *
 *   float step[2][16]
 *   uint8 codes[32 quads][2][16 rows][4]    a weight is step * (code - 128)
 *
 * and a panel of activations, for each span,
 *
 *   int8  codes[32 quads][WIDE_TOKENS][4]
 *   int32 correction[WIDE_TOKENS]           minus 128 times the sum of a token's codes
 *   float step[WIDE_TOKENS]
 *
 * Included after activations.h and matmul.h by paths with 32 registers of 16 lanes.
 */
#define SPAN_UNITS (SPAN_COLUMNS / UNIT_COLUMNS)
#define SPAN_QUADS (SPAN_COLUMNS / 4)
#define LEVEL_OFFSET 128 /* of a code */
#define LEVEL_TOP 127    /* the largest code above it */
#define LEVEL_BITS 8     /* behind the point, while codes are made */

static void quantize_wide_span(const float *x, const int t, uint8_t *span) {
    int8_t codes[SPAN_COLUMNS];
    int32_t sum = 0;
    const float step = quantize_numbers(x, SPAN_COLUMNS, codes);
    for (int k = 0; k < SPAN_QUADS; k++)
        memcpy(span + (k * WIDE_TOKENS + t) * 4, codes + 4 * k, 4);
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < SPAN_COLUMNS; i++) sum += codes[i];
    span += WIDE_TOKENS * SPAN_COLUMNS;
    ((int32_t *)span)[t] = -LEVEL_OFFSET * sum;
    ((float *)span)[WIDE_TOKENS + t] = step;
}

/* Makes a panel of WIDE_TOKENS tokens from `tokens` rows; those that are missing become zeros. */
static void quantize_wide(const float *rows[], int tokens, int64_t columns, void *panel) {
    static const float zeros[SPAN_COLUMNS];
    uint8_t *span = panel;
    for (int64_t column = 0; column < columns; column += SPAN_COLUMNS) {
        for (int t = 0; t < WIDE_TOKENS; t++)
            quantize_wide_span(t < tokens ? rows[t] + column : zeros, t, span);
        span += WIDE_SPAN_BYTES;
    }
}

/* The least and the largest code of each row, among those of one scale of a unit. */
INLINE void code_range(const int bits, const uint8_t *unit, const int first, const int count,
                       Floats *least, Floats *largest) {
    const Ints byte = lanes_int(0xff);
    Ints low = quad_codes(bits, unit, first), high = low;
#pragma GCC unroll 8
    for (int k = first + 1; k < first + count; k++) {
        const Ints codes = quad_codes(bits, unit, k);
        low = lanes_least_bytes(low, codes);
        high = lanes_largest_bytes(high, codes);
    }
#pragma GCC unroll 2
    for (int half = 16; half >= 8; half /= 2) {
        low = lanes_least_bytes(low, lanes_shift_right(low, half));
        high = lanes_largest_bytes(high, lanes_shift_right(high, half));
    }
    *least = lanes_convert(lanes_and(low, byte));
    *largest = lanes_convert(lanes_and(high, byte));
}

/* The largest magnitude of those weights: scale * code + shift. Where they cancel nearly, no less
 * than what keeps `lanes_level` exact. */
INLINE Floats bound_of(const int bits, const uint8_t *unit, const int first, const int count,
                       const Floats scale, const Floats shift) {
    Floats least, largest, bound;
    code_range(bits, unit, first, count, &least, &largest);
    bound = lanes_largest(lanes_magnitude(lanes_fma(scale, least, shift)),
                          lanes_magnitude(lanes_fma(scale, largest, shift)));
    return lanes_largest(bound, lanes_magnitude(lanes_mul(shift, lanes_float(1.0f / 1024))));
}

/* Levels one group's span: a weight is scale[i] * code + shift[i], with as many scales for each
 * unit as the format has. */
INLINE void level_span(const Format format, const uint8_t *unit, const int64_t unit_stride,
                       const Floats *scale, const Floats *shift, uint8_t *span) {
    const int scales = unit_scales(format), bits = code_bits(format), quads = 8 / scales;
    const float middle = (LEVEL_OFFSET + 0.5f) * (1 << LEVEL_BITS);
    Floats bound = lanes_zero();
#pragma GCC unroll 8
    for (int i = 0; i < SPAN_UNITS * scales; i++)
        bound = lanes_largest(bound, bound_of(bits, unit + i / scales * unit_stride,
                                              i % scales * quads, quads, scale[i], shift[i]));
    const Floats step = lanes_mul(bound, lanes_float(1.0f / LEVEL_TOP));
    const Floats one = lanes_mul(lanes_inverse(step), lanes_float(1 << LEVEL_BITS));
    lanes_store((float *)span, step);
    span += TILE_GROUPS * LINE;
    for (int u = 0; u < SPAN_UNITS; u++, unit += unit_stride)
#pragma GCC unroll 2
        for (int s = 0; s < scales; s++) {
            const int i = u * scales + s;
            const Ints times = lanes_twice(lanes_round(lanes_mul(scale[i], one)));
            const Ints plus =
                lanes_twice(lanes_round(lanes_fma(shift[i], one, lanes_float(middle))));
#pragma GCC unroll 8
            for (int k = s * quads; k < (s + 1) * quads; k++)
                lanes_store_ints(span + TILE_GROUPS * LINE * (8 * u + k),
                                 lanes_level(quad_codes(bits, unit, k), times, plus));
        }
}

/* What is added to scale * code: the minimum, or minus the scale times the offset. */
INLINE void load_shifts(const Format format, const Floats *scale, Floats *minimum) {
    if (has_minimum(format)) return;
#pragma GCC unroll 16
    for (int i = 0; i < (block_units(format) == 8 ? 8 : SPAN_UNITS) * unit_scales(format); i++)
        minimum[i] = lanes_mul(scale[i], lanes_float((float)-code_offset(format)));
}

/* Levels the spans of one group; `tile` is already moved to that group's part. */
INLINE void level_group(const Format format, const uint8_t *block, int64_t columns,
                        uint8_t *tile) {
    enum { UNITS = 8, SPANS = UNITS / SPAN_UNITS };
    const int scales = unit_scales(format), units = block_units(format);
    const int64_t bytes = unit_bytes(code_bits(format));
    Floats scale[16], minimum[16];
    for (int64_t column = 0; column < columns; column += SPAN_COLUMNS * (units == 8 ? 2 : 1)) {
        if (units == 8) {
            load_scales(format, block, 0, scale, minimum);
            load_shifts(format, scale, minimum);
            block += scale_bytes(format);
            for (int i = 0; i < SPANS; i++) {
                const int first = i * SPAN_UNITS * scales;
                level_span(format, block, bytes, scale + first, minimum + first, tile);
                block += SPAN_UNITS * bytes;
                tile += TILE_SPAN_BYTES;
            }
        } else {
            const int64_t stride = scale_bytes(format) + bytes;
#pragma GCC unroll 4
            for (int u = 0; u < SPAN_UNITS; u++)
                load_scales(format, block + u * stride, 0, scale + u, minimum + u);
            load_shifts(format, scale, minimum);
            level_span(format, block + scale_bytes(format), stride, scale, minimum, tile);
            block += SPAN_UNITS * stride;
            tile += TILE_SPAN_BYTES;
        }
    }
}

#define EACH_WIDE_FORMAT(CASE)                                                                   \
    CASE(Q4_0) CASE(Q4_1) CASE(Q5_0) CASE(Q5_1) CASE(Q2_K) CASE(Q3_K) CASE(Q4_K) CASE(Q5_K)      \
    CASE(Q6_K)

#define LEVEL(FORMAT)                                                                            \
    static __attribute__((noinline)) void level_##FORMAT(const uint8_t *group, int64_t columns,  \
                                                         uint8_t *tile) {                        \
        level_group(FORMAT, group, columns, tile);                                               \
    }

EACH_WIDE_FORMAT(LEVEL)

/* Makes one group's part of a tile from `columns` columns, the first of them at `block`. */
static void level(Format format, const uint8_t *block, int64_t columns, uint8_t *tile) {
    switch (format) {
#define LEVEL_CASE(FORMAT)                                                                       \
    case FORMAT: level_##FORMAT(block, columns, tile); break;
        EACH_WIDE_FORMAT(LEVEL_CASE)
    default: break;
    }
}

/* Adds one tile times one panel to sums[2][t][row], for two groups of rows. The panel that comes
 * next is `next_bytes` further on. */
static __attribute__((noinline)) void multiply_wide(const uint8_t *tile, const void *panel,
                                                    int64_t next_bytes, int64_t columns,
                                                    float *sums) {
    const uint8_t *x = panel;
    for (int64_t column = 0; column < columns; column += SPAN_COLUMNS) {
        const uint8_t *after = x + WIDE_TOKENS * SPAN_COLUMNS, *codes = tile + 2 * LINE;
        Ints dots[2][WIDE_TOKENS];
#pragma GCC unroll 16
        for (int t = 0; t < WIDE_TOKENS; t++)
            dots[0][t] = dots[1][t] = lanes_int(((const int32_t *)after)[t]);
#pragma GCC unroll 2
        for (int k = 0; k < SPAN_QUADS; k++, codes += 2 * LINE, x += 4 * WIDE_TOKENS) {
            const Ints first = lanes_load(codes), second = lanes_load(codes + LINE);
            __builtin_prefetch(x + next_bytes);
#pragma GCC unroll 16
            for (int t = 0; t < WIDE_TOKENS; t++) {
                const Ints four = lanes_spread(x + 4 * t);
                dots[0][t] = lanes_dot_spread(dots[0][t], first, four);
                dots[1][t] = lanes_dot_spread(dots[1][t], second, four);
            }
        }
        /* Without this the compiler would keep the sums of a tile on the stack, beside these. */
        __asm__ volatile("" : : : "memory");
        const float *step = (const float *)after + WIDE_TOKENS;
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            const Floats scale = lanes_load_floats((const float *)tile + i * GROUP_ROWS);
#pragma GCC unroll 16
            for (int t = 0; t < WIDE_TOKENS; t++) {
                float *sum = sums + (i * WIDE_TOKENS + t) * GROUP_ROWS;
                Floats value = lanes_mul(lanes_convert(dots[i][t]), lanes_float(step[t]));
                lanes_store(sum, lanes_fma(value, scale, lanes_load_floats(sum)));
            }
        }
        tile += TILE_SPAN_BYTES;
        x = after + 8 * WIDE_TOKENS;
    }
}

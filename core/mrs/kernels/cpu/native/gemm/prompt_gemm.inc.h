/* The prompt GEMM: products of many tokens, PROMPT_TOKENS at a time.
 *
 * Weights are requantized first: SPAN_COLUMNS columns of a row (a span) become int8 codes with one
 * step, and activations too, so that the products of a whole span are summed in integers. A weight
 * changes by half a step at most, 1/254 of the largest magnitude of its span; with several hundred
 * tokens the time for this is negligible.
 *
 * A tile has two groups of rows and stores, for each span,
 *
 *   float step[2][16]
 *   uint8 codes[32 quads][2][16 rows][4]    a weight is step * (code - 128)
 *
 * and a panel of activations, for each span,
 *
 *   int8  codes[32 quads][PROMPT_TOKENS][4]
 *   int32 correction[PROMPT_TOKENS]           minus 128 times the sum of a token's codes
 *   float step[PROMPT_TOKENS]
 *
 * Included after activations.inc.h and matmul.inc.h, for 32 registers of 16 lanes.
 */
#define SPAN_UNITS (SPAN_COLUMNS / UNIT_COLUMNS)
#define SPAN_QUADS (SPAN_COLUMNS / 4)
#define TILE_CODE_OFFSET 128 /* a weight is step * (code - TILE_CODE_OFFSET) */
#define TILE_CODE_MAX 127    /* the largest magnitude of code - TILE_CODE_OFFSET */
#define FRACTION_BITS 8      /* of the fixed-point arithmetic that computes codes */

static void quantize_prompt_span(const float *x, const int t, uint8_t *span) {
    int8_t codes[SPAN_COLUMNS];
    int32_t sum = 0;
    const float step = quantize_values(x, SPAN_COLUMNS, codes);
    for (int k = 0; k < SPAN_QUADS; k++)
        memcpy(span + (k * PROMPT_TOKENS + t) * 4, codes + 4 * k, 4);
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < SPAN_COLUMNS; i++) sum += codes[i];
    span += PROMPT_TOKENS * SPAN_COLUMNS;
    ((int32_t *)span)[t] = -TILE_CODE_OFFSET * sum;
    ((float *)span)[PROMPT_TOKENS + t] = step;
}

/* Packs `tokens` rows as a panel of PROMPT_TOKENS tokens; missing rows are zeros. */
static void quantize_prompt_panel(const float *rows[], int tokens, int64_t columns, void *panel) {
    static const float zeros[SPAN_COLUMNS];
    uint8_t *span = panel;
    for (int64_t column = 0; column < columns; column += SPAN_COLUMNS) {
        for (int t = 0; t < PROMPT_TOKENS; t++)
            quantize_prompt_span(t < tokens ? rows[t] + column : zeros, t, span);
        span += PROMPT_SPAN_BYTES;
    }
}

/* The smallest and the largest code of each row in `count` quads of a unit. */
INLINE void code_range(const int bits, const uint8_t *unit, const int first, const int count,
                       Floats *lowest, Floats *largest) {
    const Ints byte = lanes_int(0xff);
    Ints low = quad_codes(bits, unit, first), high = low;
#pragma GCC unroll 8
    for (int k = first + 1; k < first + count; k++) {
        const Ints codes = quad_codes(bits, unit, k);
        low = lanes_min_bytes(low, codes);
        high = lanes_max_bytes(high, codes);
    }
#pragma GCC unroll 2
    for (int half = 16; half >= 8; half /= 2) {
        low = lanes_min_bytes(low, lanes_shift_right(low, half));
        high = lanes_max_bytes(high, lanes_shift_right(high, half));
    }
    *lowest = lanes_convert(lanes_and(low, byte));
    *largest = lanes_convert(lanes_and(high, byte));
}

/* An upper bound of the magnitude of those weights, scale * code + shift: at least |shift| / 1024,
 * so that the fixed-point arithmetic of `lanes_requantize` stays exact even if scale * code nearly
 * cancels the shift. */
INLINE Floats magnitude_bound(const int bits, const uint8_t *unit, const int first, const int count,
                              const Floats scale, const Floats shift) {
    Floats lowest, largest, bound;
    code_range(bits, unit, first, count, &lowest, &largest);
    bound = lanes_max(lanes_abs(lanes_fma(scale, lowest, shift)),
                      lanes_abs(lanes_fma(scale, largest, shift)));
    return lanes_max(bound, lanes_abs(lanes_mul(shift, lanes_float(1.0f / 1024))));
}

/* Requantizes one group's span. A weight is scale[i] * code + shift[i]; i counts the scales of the
 * span's units, of which each has unit_scales(format). */
INLINE void requantize_span(const Format format, const uint8_t *unit, const int64_t unit_stride,
                            const Floats *scale, const Floats *shift, uint8_t *span) {
    const int scales = unit_scales(format), bits = code_bits(format), quads = 8 / scales;
    const float middle = (TILE_CODE_OFFSET + 0.5f) * (1 << FRACTION_BITS);
    Floats bound = lanes_zero();
#pragma GCC unroll 8
    for (int i = 0; i < SPAN_UNITS * scales; i++)
        bound = lanes_max(bound, magnitude_bound(bits, unit + i / scales * unit_stride,
                                                 i % scales * quads, quads, scale[i], shift[i]));
    const Floats step = lanes_mul(bound, lanes_float(1.0f / TILE_CODE_MAX));
    const Floats one = lanes_mul(lanes_inverse_or_zero(step), lanes_float(1 << FRACTION_BITS));
    lanes_store((float *)span, step);
    span += TILE_GROUPS * LINE;
    for (int u = 0; u < SPAN_UNITS; u++, unit += unit_stride)
#pragma GCC unroll 2
        for (int s = 0; s < scales; s++) {
            const int i = u * scales + s;
            const Ints times = lanes_repeat_low16(lanes_round(lanes_mul(scale[i], one)));
            const Ints plus =
                lanes_repeat_low16(lanes_round(lanes_fma(shift[i], one, lanes_float(middle))));
#pragma GCC unroll 8
            for (int k = s * quads; k < (s + 1) * quads; k++)
                lanes_store_ints(span + TILE_GROUPS * LINE * (8 * u + k),
                                 lanes_requantize(quad_codes(bits, unit, k), times, plus));
        }
}

/* The shift of a weight, scale * code + shift: the minimum, or -scale * offset. */
INLINE void load_shifts(const Format format, const Floats *scale, Floats *minimum) {
    if (has_minimum(format)) return;
#pragma GCC unroll 16
    for (int i = 0; i < (block_units(format) == 8 ? 8 : SPAN_UNITS) * unit_scales(format); i++)
        minimum[i] = lanes_mul(scale[i], lanes_float((float)-code_offset(format)));
}

/* Requantizes the spans of one group; `tile` points at that group's part. */
INLINE void requantize_group(const Format format, const uint8_t *block, int64_t columns,
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
                requantize_span(format, block, bytes, scale + first, minimum + first, tile);
                block += SPAN_UNITS * bytes;
                tile += TILE_SPAN_BYTES;
            }
        } else {
            const int64_t stride = scale_bytes(format) + bytes;
#pragma GCC unroll 4
            for (int u = 0; u < SPAN_UNITS; u++)
                load_scales(format, block + u * stride, 0, scale + u, minimum + u);
            load_shifts(format, scale, minimum);
            requantize_span(format, block + scale_bytes(format), stride, scale, minimum, tile);
            block += SPAN_UNITS * stride;
            tile += TILE_SPAN_BYTES;
        }
    }
}

#define EACH_PROMPT_FORMAT(CASE)                                                                   \
    CASE(Q4_0) CASE(Q4_1) CASE(Q5_0) CASE(Q5_1) CASE(Q2_K) CASE(Q3_K) CASE(Q4_K) CASE(Q5_K)        \
    CASE(Q6_K)

#define REQUANTIZE(FORMAT)                                                                         \
    static __attribute__((noinline)) void requantize_##FORMAT(const uint8_t *group,                \
                                                              int64_t columns, uint8_t *tile) {    \
        requantize_group(FORMAT, group, columns, tile);                                            \
    }

EACH_PROMPT_FORMAT(REQUANTIZE)

/* Writes one group's part of a tile, from `columns` columns that begin at `block`. */
static void requantize(Format format, const uint8_t *block, int64_t columns, uint8_t *tile) {
    switch (format) {
#define REQUANTIZE_CASE(FORMAT)                                                                    \
    case FORMAT: requantize_##FORMAT(block, columns, tile); break;
        EACH_PROMPT_FORMAT(REQUANTIZE_CASE)
    default: break;
    }
}

/* sums[2 groups][PROMPT_TOKENS][16 rows] += tile * panel. The next panel, `next_bytes` further on,
 * is prefetched. */
static __attribute__((noinline)) void multiply_tile(const uint8_t *tile, const void *panel,
                                                    int64_t next_bytes, int64_t columns,
                                                    float *sums) {
    const uint8_t *x = panel;
    for (int64_t column = 0; column < columns; column += SPAN_COLUMNS) {
        const uint8_t *after = x + PROMPT_TOKENS * SPAN_COLUMNS, *codes = tile + 2 * LINE;
        Ints dots[2][PROMPT_TOKENS];
#pragma GCC unroll 16
        for (int t = 0; t < PROMPT_TOKENS; t++)
            dots[0][t] = dots[1][t] = lanes_int(((const int32_t *)after)[t]);
#pragma GCC unroll 2
        for (int k = 0; k < SPAN_QUADS; k++, codes += 2 * LINE, x += 4 * PROMPT_TOKENS) {
            const Ints first = lanes_load(codes), second = lanes_load(codes + LINE);
            __builtin_prefetch(x + next_bytes);
#pragma GCC unroll 16
            for (int t = 0; t < PROMPT_TOKENS; t++) {
                const Ints four = lanes_broadcast_quad(x + 4 * t);
                dots[0][t] = lanes_dot_quad(dots[0][t], first, four);
                dots[1][t] = lanes_dot_quad(dots[1][t], second, four);
            }
        }
        /* Otherwise gcc keeps the sums of a whole tile on the stack. */
        __asm__ volatile("" : : : "memory");
        const float *step = (const float *)after + PROMPT_TOKENS;
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            const Floats scale = lanes_load_floats((const float *)tile + i * GROUP_ROWS);
#pragma GCC unroll 16
            for (int t = 0; t < PROMPT_TOKENS; t++) {
                float *sum = sums + (i * PROMPT_TOKENS + t) * GROUP_ROWS;
                Floats value = lanes_mul(lanes_convert(dots[i][t]), lanes_float(step[t]));
                lanes_store(sum, lanes_fma(value, scale, lanes_load_floats(sum)));
            }
        }
        tile += TILE_SPAN_BYTES;
        x = after + 8 * PROMPT_TOKENS;
    }
}

/* Products with WIDE_TOKENS tokens at a time, for prompts, of the formats with two levels of scales.
 *
 * Activations have one step for 256 columns, as the weights' blocks: then what belongs to a block
 * adds up before it is multiplied by the step, and minima are products of integers. A panel holds,
 * for each block:
 *
 *   int8  codes[8 units][WIDE_TOKENS][32]
 *   int32 correction[scales][WIDE_TOKENS]   minus the sum of a scale's codes times the offset, or
 *   int16 sums[scales / 2][WIDE_TOKENS][2]  for affine formats the sums of the codes of scales 4i
 *                                           and 4i+2, then 4i+1 and 4i+3
 *   float step[WIDE_TOKENS]
 *
 * Included after activations.h and matmul.h by paths with 32 registers.
 */
#define WIDE_UNITS 8
#define WIDE_COLUMNS (WIDE_UNITS * UNIT_COLUMNS)

/* The order of sums: those whose minima are the even bytes of a lane, then the odd ones. */
INLINE int paired_scale(const int pair, const int half) {
    return 4 * (pair >> 1) + (pair & 1) + 2 * half;
}

INLINE void quantize_wide_block(const Format format, const float *x, const int t, uint8_t *block) {
    enum { SUMS = WIDE_COLUMNS / 16 };
    const int scales = WIDE_UNITS * unit_scales(format);
    int8_t codes[WIDE_COLUMNS];
    int32_t sums[SUMS];
    float step = quantize_numbers(x, WIDE_COLUMNS, codes);
    for (int u = 0; u < WIDE_UNITS; u++)
        memcpy(block + (u * WIDE_TOKENS + t) * UNIT_COLUMNS, codes + u * UNIT_COLUMNS,
               UNIT_COLUMNS);
    for (int s = 0; s < SUMS; s++) sums[s] = sum_of_codes(codes + 16 * s);
    if (unit_scales(format) == 1)
        for (int s = 0; s < scales; s++) sums[s] = sums[2 * s] + sums[2 * s + 1];
    uint8_t *after = block + WIDE_TOKENS * WIDE_COLUMNS;
    if (has_minimum(format)) {
        int16_t *pairs = (int16_t *)after;
        for (int i = 0; i < scales; i++)
            pairs[(i / 2 * WIDE_TOKENS + t) * 2 + i % 2] =
                (int16_t)sums[paired_scale(i / 2, i % 2)];
        after += scales * WIDE_TOKENS * 2;
    } else {
        int32_t *correction = (int32_t *)after;
        for (int s = 0; s < scales; s++)
            correction[s * WIDE_TOKENS + t] = -code_offset(format) * sums[s];
        after += scales * WIDE_TOKENS * 4;
    }
    ((float *)after)[t] = step;
}

/* Makes a panel of WIDE_TOKENS tokens from `tokens` rows; those that are missing become zeros. */
static void quantize_wide(Format format, const float *rows[], int tokens, int64_t columns,
                          void *panel) {
    static const float zeros[WIDE_COLUMNS];
    uint8_t *block = panel;
    for (int64_t column = 0; column < columns; column += WIDE_COLUMNS) {
        for (int t = 0; t < WIDE_TOKENS; t++)
            quantize_wide_block(format, t < tokens ? rows[t] + column : zeros, t, block);
        block += wide_block_bytes(format);
    }
}

/* The minima of a block as pairs of 16 bits, in the order of `paired_scale`, and their factor. */
INLINE Floats load_minima(const Format format, const uint8_t *block, Ints pairs[8]) {
    const Ints even = lanes_int(0x00ff00ff);
    Ints lines[4];
    const int count = format == Q2_K ? 4 : 2;
    if (format == Q2_K) {
        for (int i = 0; i < 4; i++)
            lines[i] = lanes_and(lanes_shift_right(lanes_load(block + LINE * i), 4),
                                 lanes_byte(0x0f));
    } else {
        Ints six[4];
        load_six_bits(block, six);
        lines[0] = six[2];
        lines[1] = six[3];
    }
    for (int i = 0; i < count; i++) {
        pairs[2 * i] = lanes_and(lines[i], even);
        pairs[2 * i + 1] = lanes_and(lanes_shift_right(lines[i], 8), even);
    }
    return lanes_mul(lanes_half(block + (format == Q2_K ? 18 : 14) * GROUP_ROWS),
                     lanes_float(-1));
}

/* sum[t] of each token = what its minima, if any, take from a block. */
INLINE void start_block(const Format format, const uint8_t *block, const uint8_t *after,
                        Floats *sum) {
    if (!has_minimum(format)) {
#pragma GCC unroll 16
        for (int t = 0; t < WIDE_TOKENS; t++) sum[t] = lanes_zero();
        return;
    }
    Ints minima[8];
    const int pairs = WIDE_UNITS * unit_scales(format) / 2;
    Floats factor = load_minima(format, block, minima);
#pragma GCC unroll 16
    for (int t = 0; t < WIDE_TOKENS; t++) {
        Ints total = lanes_int(0);
#pragma GCC unroll 8
        for (int i = 0; i < pairs; i++)
            total = lanes_dot_pair(total, minima[i],
                                   (const int16_t *)after + (i * WIDE_TOKENS + t) * 2);
        sum[t] = lanes_mul(lanes_convert(total), factor);
    }
}

/* Adds the products of scale `s` of a unit. */
INLINE void add_wide_scale(const Format format, const uint8_t *unit, const int8_t *x,
                           const int32_t *correction, const int s, const Floats scale,
                           Floats *sum) {
    const int bits = code_bits(format), quads = 8 / unit_scales(format);
    Ints dots[WIDE_TOKENS];
#pragma GCC unroll 16
    for (int t = 0; t < WIDE_TOKENS; t++)
        dots[t] = lanes_int(has_minimum(format) ? 0 : correction[t]);
#pragma GCC unroll 8
    for (int k = s * quads; k < (s + 1) * quads; k++) {
        Ints codes = quad_codes(bits, unit, k);
#pragma GCC unroll 16
        for (int t = 0; t < WIDE_TOKENS; t++)
            dots[t] = lanes_dot(dots[t], codes, x + t * UNIT_COLUMNS + 4 * k);
    }
#pragma GCC unroll 16
    for (int t = 0; t < WIDE_TOKENS; t++)
        sum[t] = lanes_fma(lanes_convert(dots[t]), scale, sum[t]);
}

INLINE void multiply_wide_format(const Format format, const uint8_t *block, const uint8_t *panel,
                                 int64_t columns, float *out) {
    const int scales = unit_scales(format), bytes = unit_bytes(code_bits(format));
    Floats total[WIDE_TOKENS], sum[WIDE_TOKENS], scale[16], minimum[16];
    for (int t = 0; t < WIDE_TOKENS; t++) total[t] = lanes_zero();
    for (int64_t column = 0; column < columns; column += WIDE_COLUMNS) {
        const uint8_t *after = panel + WIDE_TOKENS * WIDE_COLUMNS;
        load_scales(format, block, 0, scale, minimum);
        start_block(format, block, after, sum);
        block += scale_bytes(format);
#pragma GCC unroll 1
        for (int u = 0; u < WIDE_UNITS; u++) {
#pragma GCC unroll 2
            for (int s = 0; s < scales; s++)
                add_wide_scale(format, block, (const int8_t *)panel,
                               (const int32_t *)after + (u * scales + s) * WIDE_TOKENS, s,
                               scale[u * scales + s], sum);
            block += bytes;
            panel += WIDE_TOKENS * UNIT_COLUMNS;
        }
        panel += wide_block_bytes(format) - WIDE_TOKENS * WIDE_COLUMNS;
        const float *step = (const float *)panel - WIDE_TOKENS;
#pragma GCC unroll 16
        for (int t = 0; t < WIDE_TOKENS; t++)
            total[t] = lanes_fma(sum[t], lanes_float(step[t]), total[t]);
    }
    for (int t = 0; t < WIDE_TOKENS; t++) lanes_store(out + t * GROUP_ROWS, total[t]);
}

#define EACH_WIDE_FORMAT(CASE) CASE(Q2_K) CASE(Q3_K) CASE(Q4_K) CASE(Q5_K) CASE(Q6_K)

#define MULTIPLY_WIDE(FORMAT)                                                                    \
    static __attribute__((noinline)) void multiply_wide_##FORMAT(                                \
        const uint8_t *group, const void *panel, int64_t columns, float *out) {                  \
        multiply_wide_format(FORMAT, group, panel, columns, out);                                \
    }

EACH_WIDE_FORMAT(MULTIPLY_WIDE)

/* One group times one panel: out[t][row] for WIDE_TOKENS tokens and 16 rows. */
static void multiply_wide(Format format, const uint8_t *group, const void *panel, int64_t columns,
                          float *out) {
    switch (format) {
#define MULTIPLY_WIDE_CASE(FORMAT)                                                               \
    case FORMAT: multiply_wide_##FORMAT(group, panel, columns, out); break;
        EACH_WIDE_FORMAT(MULTIPLY_WIDE_CASE)
    default: break;
    }
}

/* Activations as the kernels read them; included once per instruction set.
 *
 * A panel has `width` tokens and consists of units of 32 columns. For integer weights a unit is
 *
 *   int8  codes[width][32]      x is about step * code
 *   float step[width]           the largest |x| of the unit / 127
 *   correction[2][width]        for each scale of the unit (a format with one uses only the
 *                               first): float step * sum of codes for formats with a minimum,
 *                               otherwise int32 SUM_START (see isa/lanes_*.h) - offset of the
 *                               weights * sum of codes
 *
 * and for weights in floats float x[width][32], or bf16 for BF16_PAIRS. With more than NARROW_TOKENS
 * tokens, for tiles, the floats are sums of two bf16: bf16 high[width][32], then low[width][32].
 */
#include "gemm/weights.h"
#include "half.h"

#ifndef HAS_LANES_CODES
/* The sum of 16 codes, as bytes of two words: made unsigned, then added to four sums of 16 bits, of
 * which a multiplication makes the total in its highest 16 bits. */
INLINE int32_t sum_of_codes(const int8_t *codes) {
    uint64_t words[2], pairs = 0;
    memcpy(words, codes, sizeof words);
    for (int i = 0; i < 2; i++) {
        uint64_t word = words[i] ^ 0x8080808080808080;
        pairs += (word & 0x00ff00ff00ff00ff) + (word >> 8 & 0x00ff00ff00ff00ff);
    }
    return (int32_t)(pairs * 0x0001000100010001 >> 48) - 16 * 128;
}

/* The bits of the largest magnitude; more than those of infinity if there is a NaN. */
INLINE int32_t largest_magnitude(const float *x, const int count) {
    int32_t largest = 0;
    for (int i = 0; i < count; i++) {
        int32_t magnitude = (int32_t)(bits_of_float(x[i]) & 0x7fffffff);
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

/* codes = x * factor, rounded to the nearest int8; returns the sum of these 16 codes. */
INLINE int32_t make_codes(const float *x, const float factor, int8_t *codes) {
    const float rounder = 12582912.0f; /* 1.5 * 2^23: the sum's low bits are the nearest integer */
    for (int i = 0; i < 16; i++)
        codes[i] = (int8_t)(bits_of_float(x[i] * factor + rounder) - bits_of_float(rounder));
    return sum_of_codes(codes);
}
#else

INLINE int32_t largest_magnitude(const float *x, const int count) {
    Ints largest = lanes_int(0);
    for (int i = 0; i < count; i += LANES)
        largest = lanes_max(largest, lanes_and(lanes_load(x + i), lanes_int(0x7fffffff)));
    return lanes_largest(largest);
}

INLINE int32_t make_codes(const float *x, const float factor, int8_t *codes) {
    return lanes_store_codes(codes, lanes_mul(lanes_load_floats(x), lanes_float(factor)));
}
#endif

/* Writes the codes of x, a unit, and the sums of its halves; returns its step. NaN or infinity in x
 * makes the step NaN, and so the results. */
INLINE float quantize_values(const float *x, int8_t *codes, int32_t half_sum[2]) {
    const int32_t largest = largest_magnitude(x, UNIT_COLUMNS);
    float bound = float_of_bits((uint32_t)largest);
    bool is_finite = largest < 0x7f800000;
    /* Values so small that 127 / bound would overflow are rounded to zero. */
    float factor = is_finite && bound > 1e-36f ? 127.0f / bound : 0.0f;
    for (int i = 0; i < 2; i++) half_sum[i] = make_codes(x + 16 * i, factor, codes + 16 * i);
    return is_finite ? (factor > 0 ? bound / 127.0f : 0.0f) : float_of_bits(0x7fc00000);
}

/* Writes token `t` of one unit of a panel. */
INLINE void quantize_unit(const Format format, const float *x, int t, int width, uint8_t *unit) {
    int8_t *codes = (int8_t *)unit + t * UNIT_COLUMNS;
    float *step = (float *)(unit + width * UNIT_COLUMNS) + t;
    int32_t *correction = (int32_t *)(step + width);
    const int offset = format == Q8_0 ? BYTE_OFFSET : code_offset(format);
    int32_t half_sum[2];
    *step = quantize_values(x, codes, half_sum);
    if (unit_scales(format) == 1) half_sum[0] += half_sum[1];
    for (int s = 0; s < 2; s++) {
        if (has_minimum(format))
            ((float *)correction)[s * width] = (float)half_sum[s] * *step;
        else
            correction[s * width] = SUM_START - offset * half_sum[s];
    }
}

/* Writes token `t` of one unit of a panel as sums of two bf16, which have 16 bits. */
INLINE void split_unit(const float *x, int t, int width, uint16_t *unit) {
    uint16_t *high = unit + t * UNIT_COLUMNS, *low = high + width * UNIT_COLUMNS;
    for (int j = 0; j < UNIT_COLUMNS; j++) {
        high[j] = bf16_of_float(x[j]);
        low[j] = bf16_of_float(x[j] - float_of_bf16(high[j]));
    }
}

/* Writes `count` rows of activations as the tokens from `first` on of a panel of `width` tokens.
 * Missing columns of the last unit are zeros. */
INLINE void quantize_format(const Format format, const float *const rows[], int count, int first,
                            int width, int64_t columns, uint8_t *unit) {
    for (int64_t column = 0; column < columns; column += UNIT_COLUMNS) {
        for (int i = 0; i < count; i++) {
            const float *x = rows[i] + column;
            float end[UNIT_COLUMNS];
            if (columns - column < UNIT_COLUMNS) {
                memset(end, 0, sizeof end);
                memcpy(end, x, (size_t)(columns - column) * sizeof(float));
                x = end;
            }
            if (format == BF16_PAIRS)
                for (int j = 0; j < UNIT_COLUMNS; j++)
                    ((uint16_t *)unit)[(first + i) * UNIT_COLUMNS + j] = bf16_of_float(x[j]);
            else if (is_float(format) && width > NARROW_TOKENS)
                split_unit(x, first + i, width, (uint16_t *)unit);
            else if (is_float(format))
                memcpy((float *)unit + (first + i) * UNIT_COLUMNS, x, UNIT_COLUMNS * sizeof(float));
            else
                quantize_unit(format, x, first + i, width, unit);
        }
        unit += panel_unit_bytes(format, width);
    }
}

static void quantize(Format format, const float *const rows[], int count, int first, int width,
                     int64_t columns, void *panel) {
    switch (kernel_format(format)) {
#define QUANTIZE(FORMAT)                                                                         \
    case FORMAT: quantize_format(FORMAT, rows, count, first, width, columns, panel); break;
        EACH_FORMAT(QUANTIZE)
    case BF16_PAIRS: quantize_format(BF16_PAIRS, rows, count, first, width, columns, panel); break;
    default: quantize_format(F16, rows, count, first, width, columns, panel); break;
    }
}

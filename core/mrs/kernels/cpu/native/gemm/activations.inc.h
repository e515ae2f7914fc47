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
 * and for 16-bit weights float x[width][32], or bf16 for BF16_PAIRS.
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

/* codes = x * factor, rounded to the nearest int8. */
INLINE void make_codes(const float *x, const float factor, const int count, int8_t *codes) {
    const float rounder = 12582912.0f; /* 1.5 * 2^23: the sum's low bits are the nearest integer */
    for (int i = 0; i < count; i++)
        codes[i] = (int8_t)(bits_of_float(x[i] * factor + rounder) - bits_of_float(rounder));
}
#else
INLINE int32_t sum_of_codes(const int8_t *codes) { return lanes_sum_of_codes(codes); }

INLINE void make_codes(const float *x, const float factor, const int count, int8_t *codes) {
    for (int i = 0; i < count; i += LANES)
        lanes_store_codes(codes + i, lanes_mul(lanes_load_floats(x + i), lanes_float(factor)));
}
#endif

/* Writes the codes of x and returns its step. NaN or infinity in x makes the step NaN, and so the
 * results. */
INLINE float quantize_values(const float *x, const int count, int8_t *codes) {
    int32_t largest = 0;
    for (int i = 0; i < count; i++) {
        int32_t magnitude = (int32_t)(bits_of_float(x[i]) & 0x7fffffff);
        largest = magnitude > largest ? magnitude : largest;
    }
    float bound = float_of_bits((uint32_t)largest);
    bool is_finite = largest < 0x7f800000;
    /* Values so small that 127 / bound would overflow are rounded to zero. */
    float factor = is_finite && bound > 1e-36f ? 127.0f / bound : 0.0f;
    make_codes(x, factor, count, codes);
    return is_finite ? (factor > 0 ? bound / 127.0f : 0.0f) : float_of_bits(0x7fc00000);
}

/* Writes one unit of a panel. x[t] points at the unit's 32 values of token t. */
INLINE void quantize_panel_unit(const Format format, const float *x[], int width, uint8_t *unit) {
    int8_t *codes = (int8_t *)unit;
    float *step = (float *)(unit + width * UNIT_COLUMNS);
    int32_t *correction = (int32_t *)(step + width);
    const int offset = format == Q8_0 ? BYTE_OFFSET : code_offset(format);
    for (int t = 0; t < width; t++, codes += UNIT_COLUMNS) {
        step[t] = quantize_values(x[t], UNIT_COLUMNS, codes);
        int32_t half_sum[2] = {sum_of_codes(codes), sum_of_codes(codes + 16)};
        if (unit_scales(format) == 1) half_sum[0] += half_sum[1];
        for (int s = 0; s < 2; s++) {
            if (has_minimum(format))
                ((float *)correction)[s * width + t] = (float)half_sum[s] * step[t];
            else
                correction[s * width + t] = SUM_START - offset * half_sum[s];
        }
    }
}

/* Packs `tokens` rows as a panel of `width` tokens. Missing rows, and missing columns of the last
 * unit, are zeros. */
static void quantize(Format format, const float *rows[], int tokens, int width, int64_t columns,
                     void *panel) {
    static const float zeros[UNIT_COLUMNS];
    uint8_t *unit = panel;
    for (int64_t column = 0; column < columns; column += UNIT_COLUMNS) {
        const float *x[MAX_TOKENS];
        float ends[MAX_TOKENS][UNIT_COLUMNS];
        int64_t left = columns - column;
        for (int t = 0; t < width; t++) {
            x[t] = t < tokens ? rows[t] + column : zeros;
            if (t < tokens && left < UNIT_COLUMNS) {
                memset(ends[t], 0, sizeof ends[t]);
                memcpy(ends[t], x[t], (size_t)left * sizeof(float));
                x[t] = ends[t];
            }
        }
        if (format == BF16_PAIRS)
            for (int i = 0; i < width * UNIT_COLUMNS; i++)
                ((uint16_t *)unit)[i] = bf16_of_float(x[i / UNIT_COLUMNS][i % UNIT_COLUMNS]);
        else if (is_float(format))
            for (int t = 0; t < width; t++)
                memcpy((float *)unit + t * UNIT_COLUMNS, x[t], UNIT_COLUMNS * sizeof(float));
        else
            quantize_panel_unit(format, x, width, unit);
        unit += panel_unit_bytes(format, width);
    }
}

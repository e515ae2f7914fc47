/* Products of two groups with many tokens; included once per instruction set, after matmul.inc.h,
 * for 32 registers of 16 lanes.
 *
 * The codes of a unit are unpacked into registers once and multiplied with all tokens of a panel, a
 * few at a time, so that several chains of products hide each other's latency. A token's four codes
 * are broadcast once for both groups. The totals stay in the first-level cache. Each total is
 * computed by the same operations in the same order as in matmul.inc.h, so that a result does not
 * depend on the number of tokens.
 */
#define BLOCK_TOKENS 4

/* Adds one unit's products to totals (width, 2 * GROUP_ROWS). `x` is the unit in a panel
 * (activations.inc.h), whose width is a multiple of BLOCK_TOKENS. */
INLINE void add_wide_unit(const Format format, const int width, const uint8_t *const unit[2],
                          const uint8_t *x, const Floats *const scale[2],
                          const Floats *const minimum[2], float *totals) {
    const int bits = code_bits(format), scales = unit_scales(format), quads = 8 / scales;
    const float *step = (const float *)(x + width * UNIT_COLUMNS);
    const int32_t *correction = (const int32_t *)(step + width);
    const float *shift = (const float *)correction;
    Ints codes[2][8];
#pragma GCC unroll 2
    for (int g = 0; g < 2; g++) {
#pragma GCC unroll 8
        for (int line = 0; line < bits; line++) prefetch_line(unit[g] + line * LINE);
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) codes[g][k] = product_codes(format, unit[g], k);
    }
    for (int t = 0; t < width; t += BLOCK_TOKENS, x += BLOCK_TOKENS * UNIT_COLUMNS) {
        Floats scaled[2][BLOCK_TOKENS];
#pragma GCC unroll 2
        for (int s = 0; s < scales; s++) {
            Ints sum[2][BLOCK_TOKENS];
#pragma GCC unroll 4
            for (int i = 0; i < BLOCK_TOKENS; i++)
                sum[0][i] = sum[1][i] = lanes_int(
                    has_minimum(format) ? SUM_START : correction[s * width + t + i]);
#pragma GCC unroll 8
            for (int k = s * quads; k < (s + 1) * quads; k++)
#pragma GCC unroll 4
                for (int i = 0; i < BLOCK_TOKENS; i++) {
                    const Ints four = lanes_broadcast_quad(x + i * UNIT_COLUMNS + 4 * k);
                    sum[0][i] = lanes_dot_quad(sum[0][i], codes[0][k], four);
                    sum[1][i] = lanes_dot_quad(sum[1][i], codes[1][k], four);
                }
#pragma GCC unroll 4
            for (int i = 0; i < BLOCK_TOKENS; i++)
#pragma GCC unroll 2
                for (int g = 0; g < 2; g++)
                    scaled[g][i] =
                        s ? lanes_fma(lanes_sum_value(sum[g][i]), scale[g][s], scaled[g][i])
                          : scaled_sum(format, sum[g][i], scale[g][s]);
        }
        /* Otherwise gcc moves the loads of totals up and runs out of registers. */
        __asm__ volatile("" : : : "memory");
#pragma GCC unroll 4
        for (int i = 0; i < BLOCK_TOKENS; i++)
#pragma GCC unroll 2
            for (int g = 0; g < 2; g++, totals += GROUP_ROWS) {
                Floats total = lanes_load_floats(totals);
#pragma GCC unroll 2
                for (int s = 0; s < scales && has_minimum(format); s++)
                    total = lanes_fma(minimum[g][s], lanes_float(shift[s * width + t + i]), total);
                lanes_store(totals, lanes_fma(scaled[g][i], lanes_float(step[t + i]), total));
            }
    }
}

/* totals (width, 2 * GROUP_ROWS) += some columns of a panel times those of two groups. */
INLINE void multiply_wide_format(const Format format, const uint8_t *first, const uint8_t *second,
                                 const uint8_t *x, const int width, int64_t columns,
                                 const int units, float *totals) {
    const int scales = is_grouped(format) ? 0 : unit_scales(format);
    const int bytes = unit_bytes(code_bits(format));
    Floats scale[2][16], minimum[2][16];
    for (int64_t column = 0; column < columns; column += units * UNIT_COLUMNS) {
        load_scales(format, first, 0, scale[0], minimum[0]);
        load_scales(format, second, 0, scale[1], minimum[1]);
        first += scale_bytes(format);
        second += scale_bytes(format);
        for (int u = 0; u < units; u++, first += bytes, second += bytes) {
            const uint8_t *const unit[2] = {first, second};
            const Floats *const scale_of_unit[2] = {scale[0] + u * scales, scale[1] + u * scales};
            const Floats *const minimum_of_unit[2] = {minimum[0] + u * scales,
                                                      minimum[1] + u * scales};
            add_wide_unit(format, width, unit, x, scale_of_unit, minimum_of_unit, totals);
            x += panel_unit_bytes(format, width);
        }
    }
}

#define MULTIPLY_WIDE(FORMAT)                                                                    \
    static __attribute__((noinline)) void multiply_wide_##FORMAT(                                \
        const uint8_t *first, const uint8_t *second, const void *panel, int width,               \
        int64_t columns, int units, float *totals) {                                             \
        multiply_wide_format(FORMAT, first, second, panel, width, columns,                       \
                             is_grouped(FORMAT) ? units : block_units(FORMAT), totals);          \
    }

EACH_FORMAT(MULTIPLY_WIDE)

static void multiply_wide(Format format, const uint8_t *first, const uint8_t *second,
                          const void *panel, int width, int64_t columns, float *totals) {
    const int units = block_units(format);
    switch (kernel_format(format)) {
#define MULTIPLY_WIDE_CASE(FORMAT)                                                               \
    case FORMAT:                                                                                 \
        multiply_wide_##FORMAT(first, second, panel, width, columns, units, totals);             \
        break;
        EACH_FORMAT(MULTIPLY_WIDE_CASE)
    default: break;
    }
}

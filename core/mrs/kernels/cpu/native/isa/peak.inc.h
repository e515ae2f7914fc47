/* Products of registers as fast as the instruction set allows, to compare products of matrices
 * with. Sums do not wait for each other, and only the second factor comes from memory, as in the
 * kernels. Included once per instruction set, after its lanes. */
#include "mrs.h"

#define PEAK_SUMS 12 /* with both factors they fit in 16 registers */

/* As many quads as the kernels of 4-bit weights sum at once. */
#ifdef HAS_LANES_PAIRS
#define PEAK_QUADS 8
INLINE Ints multiply_quads(Ints sum, Ints codes, const float *x) {
    Ints pairs = lanes_pairs(codes, (const int8_t *)x);
#pragma GCC unroll 8
    for (int i = 1; i < PEAK_QUADS; i++)
        pairs = lanes_add_pairs(pairs, lanes_pairs(codes, (const int8_t *)(x + i)));
    return lanes_add(sum, lanes_sum_pairs(pairs));
}
#else
#define PEAK_QUADS 1
INLINE Ints multiply_quads(Ints sum, Ints codes, const float *x) {
    return lanes_dot(sum, codes, (const int8_t *)x);
}
#endif

INLINE void multiply_once(const Factors factors, const float *x, Ints sums[PEAK_SUMS],
                          Floats totals[PEAK_SUMS]) {
    const Ints codes = lanes_byte(3);
    const Floats values = lanes_float(3);
#pragma GCC unroll 12
    for (int i = 0; i < PEAK_SUMS; i++, x++) {
        if (factors == CODES) sums[i] = multiply_quads(sums[i], codes, x);
        if (factors == FLOATS) totals[i] = lanes_fma(values, lanes_float(*x), totals[i]);
#ifdef HAS_LANES_DOT_BF16
        if (factors == BF16S) totals[i] = lanes_dot_bf16(totals[i], codes, (const uint16_t *)x);
#endif
    }
}

INLINE void multiply_often(const Factors factors, int64_t rounds) {
    float x[PEAK_SUMS + PEAK_QUADS - 1] = {0};
    Ints sums[PEAK_SUMS];
    Floats totals[PEAK_SUMS];
#pragma GCC unroll 12
    for (int i = 0; i < PEAK_SUMS; i++) sums[i] = lanes_int(0), totals[i] = lanes_zero();
    for (int64_t round = 0; round < rounds; round++) {
        multiply_once(factors, x, sums, totals);
        __asm__ volatile("" : : "r"(x) : "memory"); /* x may have changed */
    }
    Ints sum = sums[0];
    Floats total = totals[0];
#pragma GCC unroll 12
    for (int i = 1; i < PEAK_SUMS; i++) {
        sum = lanes_add(sum, sums[i]);
        total = lanes_add_floats(total, totals[i]);
    }
    __asm__ volatile("" : : "m"(sum), "m"(total));
}

/* Returns how many products of values it has computed: each lane of a quad has four, of BF16S two.
 */
static int64_t multiply_registers(Factors factors, int64_t rounds) {
    const int64_t products = rounds * PEAK_SUMS * LANES;
    switch (factors) {
    case CODES: multiply_often(CODES, rounds); return 4 * PEAK_QUADS * products;
    case FLOATS: multiply_often(FLOATS, rounds); return products;
    default: multiply_often(BF16S, rounds); return 2 * products;
    }
}

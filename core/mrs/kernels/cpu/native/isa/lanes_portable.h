/* Four 32-bit lanes in the compiler's own vector type, for all other processors. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "half.h"

#define LANES 4
#define BYTE_OFFSET 0

typedef uint32_t Ints __attribute__((vector_size(16)));
typedef int32_t SignedInts __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(16)));

static inline Ints lanes_load(const void *p) { Ints v; memcpy(&v, p, sizeof v); return v; }
static inline Ints lanes_int(int32_t v) { return (Ints){0} + (uint32_t)v; }
static inline Ints lanes_byte(int v) { return (Ints){0} + 0x01010101u * (uint8_t)v; }
static inline Ints lanes_and(Ints a, Ints b) { return a & b; }
static inline Ints lanes_or_masked(Ints a, Ints b, Ints mask) { return a | (b & mask); }
static inline Ints lanes_add(Ints a, Ints b) { return a + b; }
static inline Ints lanes_shift_right(Ints a, int n) { return a >> n; }
static inline Ints lanes_shift_left(Ints a, int n) { return a << n; }

static inline Ints lanes_bytes(Ints a) { return a; }

/* sum + the dot product of each lane's four bytes with the four signed bytes at x. Unsigned weights
 * are below 128, so that a signed product serves both kinds. */
static inline Ints lanes_dot(Ints sum, Ints weights, const int8_t *x) {
    for (int i = 0; i < 4; i++)
        sum += (Ints)((SignedInts)(weights << (24 - 8 * i)) >> 24) * (uint32_t)x[i];
    return sum;
}
static inline Ints lanes_dot_bytes(Ints sum, Ints weights, const int8_t *x) {
    return lanes_dot(sum, weights, x);
}

static inline Floats lanes_zero(void) { return (Floats){0}; }
static inline Floats lanes_float(float v) { return (Floats){v, v, v, v}; }
static inline Floats lanes_load_floats(const float *p) {
    Floats v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void lanes_store(float *p, Floats v) { memcpy(p, &v, sizeof v); }
static inline Floats lanes_convert(Ints v) {
    return __builtin_convertvector((SignedInts)v, Floats);
}
static inline Floats lanes_load_f16(const uint8_t *p) {
    uint16_t h[4];
    memcpy(h, p, sizeof h);
    return (Floats){float_of_half(h[0]), float_of_half(h[1]), float_of_half(h[2]),
                    float_of_half(h[3])};
}
static inline void lanes_store_f16(uint16_t *p, Floats v) {
    for (int i = 0; i < LANES; i++) p[i] = half_of_float(v[i]);
}
/* The bytes at p as integers. */
static inline Ints lanes_load_bytes(const uint8_t *p) { return (Ints){p[0], p[1], p[2], p[3]}; }
/* The bytes of a table at the indices in the bytes of v, which are below 16. */
static inline Ints lanes_lookup(const uint8_t table[16], Ints v) {
    uint8_t bytes[16];
    memcpy(bytes, &v, sizeof bytes);
    for (int i = 0; i < 16; i++) bytes[i] = table[bytes[i]];
    memcpy(&v, bytes, sizeof v);
    return v;
}
/* The values of a table at the low four bits of each lane. */
static inline Floats lanes_table(const float table[16], Ints v) {
    return (Floats){table[v[0] & 15], table[v[1] & 15], table[v[2] & 15], table[v[3] & 15]};
}
static inline Floats lanes_load_bf16(const uint16_t *p) {
    return (Floats){float_of_bf16(p[0]), float_of_bf16(p[1]), float_of_bf16(p[2]),
                    float_of_bf16(p[3])};
}
static inline Floats lanes_as_floats(Ints v) { return (Floats)v; }
static inline Floats lanes_mul(Floats a, Floats b) { return a * b; }
static inline Floats lanes_add_floats(Floats a, Floats b) { return a + b; }
static inline Floats lanes_fma(Floats a, Floats b, Floats c) { return a * b + c; }
/* The start of integer sums; the sums as floats; the sums times a scale. */
#define SUM_START 0
static inline Floats lanes_sum_value(Ints sum) { return lanes_convert(sum); }
static inline Floats lanes_sum_times(Ints sum, Floats scale) {
    return lanes_mul(lanes_convert(sum), scale);
}
/* v[i][j] becomes v[j][i]. */
static inline void lanes_transpose(Floats v[4]) {
    const Floats a = v[0], b = v[1], c = v[2], d = v[3];
    for (int i = 0; i < 4; i++) v[i] = (Floats){a[i], b[i], c[i], d[i]};
}

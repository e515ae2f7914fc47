/* Eight 32-bit lanes as in lanes_avx2.h, with products of codes by AVX-VNNI. */
#define BYTE_OFFSET 128 /* lanes_bytes adds it to signed bytes, to make them unsigned */
#include "isa/lanes_avx2.h"

/* Processors with AVX-512 have the same instruction in another encoding, which tests use. */
#ifndef VNNI_ENCODING
#define VNNI_ENCODING "%{vex%}"
#endif

static inline Ints lanes_bytes(Ints a) { return _mm256_xor_si256(a, lanes_byte(0x80)); }

/* sum + the dot product of each lane's four unsigned bytes with the four signed bytes at x. */
static inline Ints lanes_dot(Ints sum, Ints weights, const int8_t *x) {
    /* The intrinsic needs a flag that older compilers refuse. */
    __asm__(VNNI_ENCODING " vpdpbusd %2, %1, %0"
            : "+x"(sum)
            : "x"(weights), "x"(lanes_int(*(const int32_t *)x)));
    return sum;
}
static inline Ints lanes_dot_bytes(Ints sum, Ints weights, const int8_t *x) {
    return lanes_dot(sum, weights, x);
}

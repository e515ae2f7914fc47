/* Sixteen 32-bit lanes in one 512-bit register: AVX-512 F, BW, DQ, VL and VNNI. */
#include <immintrin.h>
#include <stdint.h>

#define LANES 16
#define BYTE_OFFSET 128 /* what lanes_bytes adds to signed weights of eight bits */

typedef __m512i Ints;
typedef __m512 Floats;

static inline Ints lanes_load(const void *p) { return _mm512_loadu_si512(p); }
static inline Ints lanes_int(int32_t v) { return _mm512_set1_epi32(v); }
static inline Ints lanes_byte(int v) { return _mm512_set1_epi8((char)v); }
static inline Ints lanes_and(Ints a, Ints b) { return _mm512_and_si512(a, b); }
static inline Ints lanes_or_masked(Ints a, Ints b, Ints mask) {
    return _mm512_ternarylogic_epi32(a, b, mask, 0xF8);
}
static inline Ints lanes_add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
static inline Ints lanes_shift_right(Ints a, int n) { return _mm512_srli_epi32(a, (unsigned)n); }
static inline Ints lanes_shift_left(Ints a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
static inline Ints lanes_shift_signed(Ints a, int n) { return _mm512_srai_epi32(a, (unsigned)n); }

static inline Ints lanes_bytes(Ints a) { return _mm512_xor_si512(a, lanes_byte(0x80)); }

/* Adds to each lane the products of its four unsigned bytes with the four signed bytes at x. */
static inline Ints lanes_dot(Ints sum, Ints weights, const int8_t *x) {
    /* As one instruction, which gcc makes of the intrinsics only as two. */
    __asm__("vpdpbusd %2%{1to16%}, %1, %0"
            : "+v"(sum)
            : "v"(weights), "m"(*(const int32_t *)x));
    return sum;
}
static inline Ints lanes_dot_bytes(Ints sum, Ints weights, const int8_t *x) {
    return lanes_dot(sum, weights, x);
}

/* Adds to each lane the products of its two 16-bit integers with the two at x. */
#define HAS_LANES_DOT_PAIR 1
static inline Ints lanes_dot_pair(Ints sum, Ints pairs, const int16_t *x) {
    __asm__("vpdpwssd %2%{1to16%}, %1, %0"
            : "+v"(sum)
            : "v"(pairs), "m"(*(const int32_t *)x));
    return sum;
}

/* Adds to each lane the products of its two bf16 with the two at x. Only processors with
 * AVX512_BF16 have it; the callers know. */
#define HAS_LANES_DOT_BF16 1
static inline Floats lanes_dot_bf16(Floats sum, Ints weights, const uint16_t *x) {
    __asm__("vdpbf16ps %2%{1to16%}, %1, %0"
            : "+v"(sum)
            : "v"(weights), "m"(*(const uint32_t *)x));
    return sum;
}

static inline Floats lanes_zero(void) { return _mm512_setzero_ps(); }
static inline Floats lanes_float(float v) { return _mm512_set1_ps(v); }
static inline Floats lanes_load_floats(const float *p) { return _mm512_loadu_ps(p); }
static inline void lanes_store(float *p, Floats v) { _mm512_storeu_ps(p, v); }
static inline Floats lanes_convert(Ints v) { return _mm512_cvtepi32_ps(v); }
static inline Floats lanes_half(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline Floats lanes_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
static inline Floats lanes_bits(Ints v) { return _mm512_castsi512_ps(v); }
static inline Floats lanes_mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
static inline Floats lanes_sum(Floats a, Floats b) { return _mm512_add_ps(a, b); }
static inline Floats lanes_fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
static inline float lanes_total(Floats v) {
    return _mm512_reduce_add_ps(v);
}
/* out[i] = the total of v[i]: pairs of vectors are merged while they are added up. */
static inline void lanes_four_totals(const Floats v[4], float *out) {
    __m512 a = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
    __m512 b = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
    __m512d c = _mm512_castps_pd(a), d = _mm512_castps_pd(b);
    __m512 four = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(c, d)),
                                _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
    __m256 two = _mm256_add_ps(_mm512_castps512_ps256(four), _mm512_extractf32x8_ps(four, 1));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(two), _mm256_extractf128_ps(two, 1)));
}

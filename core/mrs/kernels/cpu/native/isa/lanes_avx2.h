/* Eight 32-bit lanes in one 256-bit register: AVX2, FMA and F16C. */
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define LANES 8

typedef __m256i Ints;
typedef __m256 Floats;

static inline Ints lanes_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline Ints lanes_int(int32_t v) { return _mm256_set1_epi32(v); }
static inline Ints lanes_byte(int v) { return _mm256_set1_epi8((char)v); }
static inline Ints lanes_and(Ints a, Ints b) { return _mm256_and_si256(a, b); }
static inline Ints lanes_or_masked(Ints a, Ints b, Ints mask) {
    return _mm256_or_si256(a, _mm256_and_si256(b, mask));
}
static inline Ints lanes_add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
static inline Ints lanes_shift_right(Ints a, int n) { return _mm256_srli_epi32(a, n); }
static inline Ints lanes_shift_left(Ints a, int n) { return _mm256_slli_epi32(a, n); }

#ifndef BYTE_OFFSET /* otherwise the file that includes this one has products of codes */
#define BYTE_OFFSET 0
static inline Ints lanes_bytes(Ints a) { return a; }

/* Each lane's four unsigned bytes times the four signed bytes at x, in two sums of 16 bits. Weights
 * are below 64, so that a pair of products fits in 16 bits; of smaller ones several do. */
#define HAS_LANES_PAIRS 1
static inline Ints lanes_pairs(Ints weights, const int8_t *x) {
    return _mm256_maddubs_epi16(weights, lanes_int(*(const int32_t *)x));
}
/* In this order: GCC would add many of them as a tree, whose leaves do not fit in the registers. */
static inline Ints lanes_add_pairs(Ints a, Ints b) {
    Ints sum = _mm256_add_epi16(a, b);
    __asm__ volatile("" : "+x"(sum));
    return sum;
}
static inline Ints lanes_sum_pairs(Ints pairs) {
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
/* The same for signed bytes as weights: |w| * (x with the sign of w). */
static inline Ints lanes_dot_bytes(Ints sum, Ints weights, const int8_t *x) {
    Ints signed_x = _mm256_sign_epi8(lanes_int(*(const int32_t *)x), weights);
    Ints pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), signed_x);
    return lanes_add(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#endif

static inline Floats lanes_zero(void) { return _mm256_setzero_ps(); }
static inline Floats lanes_float(float v) { return _mm256_set1_ps(v); }
static inline Floats lanes_load_floats(const float *p) { return _mm256_loadu_ps(p); }
static inline void lanes_store(float *p, Floats v) { _mm256_storeu_ps(p, v); }
static inline Floats lanes_convert(Ints v) { return _mm256_cvtepi32_ps(v); }
static inline Floats lanes_load_f16(const uint8_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline void lanes_store_f16(uint16_t *p, Floats v) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
/* The bytes at p as integers. */
static inline Ints lanes_load_bytes(const uint8_t *p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
/* The bytes of a table at the indices in the bytes of v, which are below 16. */
static inline Ints lanes_lookup(const uint8_t table[16], Ints v) {
    return _mm256_shuffle_epi8(
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)), v);
}
/* The values of a table at the low four bits of each lane. */
static inline Floats lanes_table(const float table[16], Ints v) {
    const Floats low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), v);
    const Floats high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), v);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(v, 28)));
}
static inline Floats lanes_load_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static inline Floats lanes_as_floats(Ints v) { return _mm256_castsi256_ps(v); }
static inline Floats lanes_mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
static inline Floats lanes_add_floats(Floats a, Floats b) { return _mm256_add_ps(a, b); }
static inline Floats lanes_fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
/* The start of integer sums; the sums as floats; the sums times a scale. */
#define SUM_START 0
static inline Floats lanes_sum_value(Ints sum) { return lanes_convert(sum); }
static inline Floats lanes_sum_times(Ints sum, Floats scale) {
    return lanes_mul(lanes_convert(sum), scale);
}
/* v[i][j] becomes v[j][i]. */
static inline void lanes_transpose(Floats v[8]) {
    __m256 pairs[8], fours[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    /* fours[4 * i + j]: columns j and j + 4 of rows 4 * i to 4 * i + 3. */
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            __m256d a = _mm256_castps_pd(pairs[i + j]), b = _mm256_castps_pd(pairs[i + 2 + j]);
            fours[i + 2 * j] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
            fours[i + 2 * j + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
        }
    for (int j = 0; j < 4; j++) {
        v[j] = _mm256_permute2f128_ps(fours[j], fours[4 + j], 0x20);
        v[4 + j] = _mm256_permute2f128_ps(fours[j], fours[4 + j], 0x31);
    }
}

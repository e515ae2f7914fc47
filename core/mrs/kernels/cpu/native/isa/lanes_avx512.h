/* Sixteen 32-bit lanes in one 512-bit register: AVX-512 F, BW, DQ, VL and VNNI. */
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define LANES 16
#define BYTE_OFFSET 128 /* lanes_bytes adds it to signed bytes, to make them unsigned */

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

static inline Ints lanes_bytes(Ints a) { return _mm512_xor_si512(a, lanes_byte(0x80)); }

/* Byte `from` of each lane as its byte `to`, and zeros. */
#define HAS_LANES_MOVE_BYTE 1
static inline Ints lanes_move_byte(Ints a, const int from, const int to) {
    const int32_t zeros = (int32_t)(0x80808080 & ~(0xffu << 8 * to)), lane = 1 << 8 * to;
    const Ints places = _mm512_set4_epi32(12 * lane, 8 * lane, 4 * lane, 0);
    return _mm512_shuffle_epi8(a, _mm512_add_epi32(places, lanes_int(zeros + from * lane)));
}

/* sum + the dot product of each lane's four unsigned bytes with the four signed bytes at x. */
static inline Ints lanes_dot(Ints sum, Ints weights, const int8_t *x) {
    /* One instruction; from intrinsics gcc makes two. */
    __asm__("vpdpbusd %2%{1to16%}, %1, %0"
            : "+v"(sum)
            : "v"(weights), "m"(*(const int32_t *)x));
    return sum;
}
static inline Ints lanes_dot_bytes(Ints sum, Ints weights, const int8_t *x) {
    return lanes_dot(sum, weights, x);
}

/* The four bytes at x in every lane, and lanes_dot with those. */
#define HAS_BROADCAST_QUAD 1
static inline Ints lanes_broadcast_quad(const uint8_t *x) {
    Ints spread;
    __asm__("vpbroadcastd %1, %0" : "=v"(spread) : "m"(*(const int32_t *)x));
    return spread;
}
static inline Ints lanes_dot_quad(Ints sum, Ints weights, Ints spread) {
    /* From the intrinsic gcc makes a copy of each sum. */
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(spread));
    return sum;
}

/* sum + the dot product of each lane's two bf16 with the two at x. Only for processors with
 * AVX512_BF16, which the caller checks. */
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
static inline Floats lanes_load_f16(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline void lanes_store_f16(uint16_t *p, Floats v) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
/* The bytes at p as integers. */
static inline Ints lanes_load_bytes(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
/* The bytes of a table at the indices in the bytes of v, which are below 16. */
static inline Ints lanes_lookup(const uint8_t table[16], Ints v) {
    return _mm512_shuffle_epi8(
        _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)), v);
}
/* The values of a table at the low four bits of each lane. */
static inline Floats lanes_table(const float table[16], Ints v) {
    return _mm512_permutexvar_ps(v, _mm512_loadu_ps(table));
}
/* The upper and the lower bytes of the bf16 of E4M3's codes without a sign, divided by 2^8. */
#define FROM_0_TO_F0                                                                             \
    0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0
static const uint8_t fp8_upper[128] = {
    0x00, 0x37, 0x37, 0x37, [4 ... 15] = 0x38, [16 ... 31] = 0x39, [32 ... 47] = 0x3a,
    [48 ... 63] = 0x3b,     [64 ... 79] = 0x3c, [80 ... 95] = 0x3d, [96 ... 111] = 0x3e,
    [112 ... 127] = 0x3f};
static const uint8_t fp8_lower[128] = {
    0x00, 0x00, 0x80, 0xc0, 0x00, 0x20, 0x40, 0x60, 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0,
    FROM_0_TO_F0, FROM_0_TO_F0, FROM_0_TO_F0, FROM_0_TO_F0, FROM_0_TO_F0, FROM_0_TO_F0,
    FROM_0_TO_F0};
/* Four columns of FP8, as widen_fp8 (float_codes.inc.h) has them in a line, divided by 2^8. Only
 * for processors with AVX512_VBMI. */
#define HAS_LANES_FP8 1
static inline bool lanes_have_fp8(void) { return __builtin_cpu_supports("avx512vbmi"); }
static inline void lanes_load_fp8(const uint8_t *line, Floats columns[4]) {
    /* In each 128 bits the words of four rows, first of columns 0 and 2 and then of 1 and 3. */
    const __m512i rows = _mm512_set_epi16(31, 30, 29, 28, 15, 14, 13, 12, 27, 26, 25, 24, 11, 10, 9,
                                          8, 23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i codes = _mm512_permutexvar_epi16(rows, lanes_load(line));
    __m512i upper = codes, lower = codes;
    __asm__("vpermi2b %2, %1, %0"
            : "+v"(upper)
            : "v"(lanes_load(fp8_upper)), "v"(lanes_load(fp8_upper + 64)));
    __asm__("vpermi2b %2, %1, %0"
            : "+v"(lower)
            : "v"(lanes_load(fp8_lower)), "v"(lanes_load(fp8_lower + 64)));
    upper = lanes_or_masked(upper, codes, lanes_byte(0x80));
    const __m512i even = _mm512_unpacklo_epi8(lower, upper);
    const __m512i odd = _mm512_unpackhi_epi8(lower, upper), mask = lanes_int((int32_t)0xffff0000);
    columns[0] = _mm512_castsi512_ps(lanes_and(even, mask));
    columns[1] = _mm512_castsi512_ps(lanes_and(odd, mask));
    columns[2] = _mm512_castsi512_ps(lanes_shift_left(even, 16));
    columns[3] = _mm512_castsi512_ps(lanes_shift_left(odd, 16));
}
static inline Floats lanes_load_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
static inline Floats lanes_as_floats(Ints v) { return _mm512_castsi512_ps(v); }
static inline Ints lanes_as_ints(Floats v) { return _mm512_castps_si512(v); }
static inline Floats lanes_mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
static inline Floats lanes_add_floats(Floats a, Floats b) { return _mm512_add_ps(a, b); }
static inline Floats lanes_sub_floats(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
static inline Floats lanes_fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
static inline Ints lanes_round(Floats v) { return _mm512_cvtps_epi32(v); }
/* For activations.inc.h: rounds sixteen values to int8 and returns their sum; maxima of lanes. */
#define HAS_LANES_CODES 1
static inline int32_t lanes_store_codes(int8_t *codes, Floats v) {
    const __m128i bytes = _mm512_cvtepi32_epi8(lanes_round(v));
    _mm_storeu_si128((__m128i *)codes, bytes);
    const __m128i halves =
        _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(halves) + _mm_extract_epi16(halves, 4) - LANES * 128;
}
static inline Ints lanes_max(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
static inline int32_t lanes_largest(Ints v) { return _mm512_reduce_max_epi32(v); }
/* The start of integer sums: the bits of the float 1.5 * 2^23, whose last bit is worth 1. Plus a
 * sum below 2^22 they are the bits of 1.5 * 2^23 + sum, and one fma gives the same as a conversion
 * and a product: a scale has so few bits that its product with 1.5 * 2^23 is exact. */
#define SUM_START 0x4b400000
static inline Floats lanes_sum_value(Ints sum) {
    return _mm512_sub_ps(_mm512_castsi512_ps(sum), lanes_float(12582912.0f));
}
static inline Floats lanes_sum_times(Ints sum, Floats scale) {
    Floats start = lanes_mul(scale, lanes_float(-12582912.0f));
    return lanes_fma(_mm512_castsi512_ps(sum), scale, start);
}
/* v[i][j] becomes v[j][i]. */
static inline void lanes_transpose(Floats v[16]) {
    __m512 pairs[16], fours[16], eights[16];
    for (int i = 0; i < 16; i += 2) {
        pairs[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    /* fours[4 * i + j]: columns j, j + 4, j + 8 and j + 12 of rows 4 * i to 4 * i + 3. */
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            __m512d a = _mm512_castps_pd(pairs[i + j]), b = _mm512_castps_pd(pairs[i + 2 + j]);
            fours[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            fours[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    /* eights[8 * i + j]: columns j and j + 8 of rows 8 * i to 8 * i + 7; j + 4: the other two. */
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 4; j++) {
            eights[i + j] = _mm512_shuffle_f32x4(fours[i + j], fours[i + 4 + j], 0x88);
            eights[i + 4 + j] = _mm512_shuffle_f32x4(fours[i + j], fours[i + 4 + j], 0xdd);
        }
    for (int j = 0; j < 8; j++) {
        v[j] = _mm512_shuffle_f32x4(eights[j], eights[8 + j], 0x88);
        v[8 + j] = _mm512_shuffle_f32x4(eights[j], eights[8 + j], 0xdd);
    }
}
/* The same of 16 columns of 16 rows of bf16 or f16, which are at rows[offsets[i]], as floats. */
#define HAS_LANES_TRANSPOSE_HALVES 1
static inline void lanes_transpose_halves(const uint16_t *rows, const int64_t *offsets,
                                          bool is_bf16, Floats out[16]) {
    const __m512i even_then_odd = _mm512_set_epi16(
        31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26, 24, 22, 20, 18, 16,
        14, 12, 10, 8, 6, 4, 2, 0);
    __m512i v[8], twos[8];
    /* Each vector has rows i and i + 4, as pairs of columns. */
    for (int i = 0; i < 8; i++) {
        const int row = i < 4 ? i : i + 4;
        const __m256i first = _mm256_loadu_si256((const __m256i *)(rows + offsets[row]));
        const __m256i second = _mm256_loadu_si256((const __m256i *)(rows + offsets[row + 4]));
        v[i] = _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
    }
    for (int i = 0; i < 8; i += 2) {
        twos[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        twos[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    /* v[i + j]: pairs j and j + 4 of eight rows. */
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            v[i + 2 * j] = _mm512_unpacklo_epi64(twos[i + j], twos[i + 2 + j]);
            v[i + 2 * j + 1] = _mm512_unpackhi_epi64(twos[i + j], twos[i + 2 + j]);
        }
    for (int j = 0; j < 8; j++) {
        const __m512i pair = j < 4 ? _mm512_shuffle_i32x4(v[j], v[4 + j], 0x88)
                                   : _mm512_shuffle_i32x4(v[j - 4], v[j], 0xdd);
        if (is_bf16) {
            out[2 * j] = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
            out[2 * j + 1] = _mm512_castsi512_ps(
                _mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000)));
        } else {
            const __m512i split = _mm512_permutexvar_epi16(even_then_odd, pair);
            out[2 * j] = _mm512_cvtph_ps(_mm512_castsi512_si256(split));
            out[2 * j + 1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(split, 1));
        }
    }
}

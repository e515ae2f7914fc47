/* Conversions between float and the 16-bit types, exact or rounded to nearest even. */
#ifndef MRS_HALF_H
#define MRS_HALF_H

#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits) {
    float v;
    memcpy(&v, &bits, 4);
    return v;
}

static inline uint32_t bits_of_float(float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    return bits;
}

static inline float float_of_bf16(uint16_t v) { return float_of_bits((uint32_t)v << 16); }

static inline uint16_t bf16_of_float(float v) {
    uint32_t bits = bits_of_float(v);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16 | 0x40) : rounded);
}

/* 2^(e - 128), which is subnormal for e < 2. */
static inline float half_power_of_two(uint8_t e) {
    return float_of_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

/* E4M3, which has no infinities and one NaN. */
static inline float float_of_fp8(uint8_t v) {
    uint32_t sign = (uint32_t)(v & 0x80) << 24, rest = v & 0x7f;
    if (rest == 0x7f) return float_of_bits(0x7fc00000);
    float magnitude = rest < 8 ? (float)rest * 0x1p-9f : float_of_bits((rest << 20) + (120u << 23));
    return float_of_bits(sign | bits_of_float(magnitude));
}

#if defined(__F16C__)
#include <immintrin.h>
static inline float float_of_half(uint16_t v) { return _cvtsh_ss(v); }
static inline uint16_t half_of_float(float v) { return _cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT); }
#elif defined(__aarch64__)
static inline float float_of_half(uint16_t v) {
    __fp16 h;
    memcpy(&h, &v, 2);
    return h;
}
static inline uint16_t half_of_float(float v) {
    __fp16 h = (__fp16)v;
    uint16_t bits;
    memcpy(&bits, &h, 2);
    return bits;
}
#else
/* Multiplying by 2^112 corrects the exponent's bias and normalizes subnormals. */
static inline float float_of_half(uint16_t v) {
    uint32_t sign = (uint32_t)(v & 0x8000) << 16, rest = (uint32_t)(v & 0x7fff) << 13;
    if (rest >= 0x0f800000) return float_of_bits(sign | (rest + 0x70000000)); /* inf, NaN */
    return float_of_bits(sign | bits_of_float(float_of_bits(rest) * 0x1p112f));
}
/* Rounds by adding half of the last bit of a half, or 0.5 for subnormals. */
static inline uint16_t half_of_float(float v) {
    uint32_t bits = bits_of_float(v), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (rest >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (rest < 0x38800000)
        return (uint16_t)(sign | (bits_of_float(float_of_bits(rest) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | ((rest + 0xfff + (rest >> 13 & 1) - 0x38000000) >> 13));
}
#endif

#endif

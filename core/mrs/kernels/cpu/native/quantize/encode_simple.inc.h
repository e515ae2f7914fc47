/* Quantizes blocks of 32 values to Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0, with the same bits as ggml;
 * included once per instruction set. */
#include <math.h>
#include <string.h>

#include "half.h"
#include "mrs.h"

INLINE uint8_t *put_half(uint8_t *p, float v) {
    uint16_t bits = half_of_float(v);
    p[0] = (uint8_t)bits;
    p[1] = (uint8_t)(bits >> 8);
    return p + 2;
}

INLINE float inverse_of(float v) { return v == 0 ? 0 : 1 / v; }

/* Codes of 4 or 5 bits: the fifth bits, if any, in 4 bytes, then the others in 16. */
INLINE void put_codes(uint8_t *p, const int32_t *codes, const int bits) {
    if (bits == 5) {
        uint32_t fifth = 0;
        for (int i = 0; i < 32; i++) fifth |= (uint32_t)(codes[i] >> 4 & 1) << i;
        for (int i = 0; i < 4; i++) *p++ = (uint8_t)(fifth >> (8 * i));
    }
    for (int i = 0; i < 16; i++) p[i] = (uint8_t)((codes[i] & 15) | (codes[16 + i] & 15) << 4);
}

/* scale * (code - 2^(bits - 1)); the value of largest magnitude gets code 0. */
INLINE void encode_symmetric(const float *x, const int bits, uint8_t *out) {
    const int offset = 1 << (bits - 1);
    float bound = 0, largest = x[0];
    for (int i = 0; i < 32; i++) {
        float magnitude = fabsf(x[i]);
        bound = magnitude > bound ? magnitude : bound;
    }
    for (int i = 31; i >= 0; i--) largest = fabsf(x[i]) == bound ? x[i] : largest; /* the first */
    float scale = largest / (float)-offset, inverse = inverse_of(scale);
    int32_t codes[32];
    for (int i = 0; i < 32; i++) {
        int32_t code = (int32_t)(x[i] * inverse + ((float)offset + 0.5f));
        codes[i] = code > 2 * offset - 1 ? 2 * offset - 1 : code;
    }
    put_codes(put_half(out, scale), codes, bits);
}

/* scale * code + minimum. */
INLINE void encode_with_minimum(const float *x, const int bits, uint8_t *out) {
    const int levels = (1 << bits) - 1;
    float lowest = x[0], highest = x[0];
    for (int i = 1; i < 32; i++) {
        lowest = x[i] < lowest ? x[i] : lowest;
        highest = x[i] > highest ? x[i] : highest;
    }
    float scale = (highest - lowest) / (float)levels, inverse = inverse_of(scale);
    int32_t codes[32];
    for (int i = 0; i < 32; i++) {
        int32_t code = (int32_t)((x[i] - lowest) * inverse + 0.5f);
        codes[i] = code > levels ? levels : code;
    }
    put_codes(put_half(put_half(out, scale), lowest), codes, bits);
}

/* scale * code, halves rounded away from zero. */
INLINE void encode_bytes(const float *x, uint8_t *out) {
    float bound = 0;
    for (int i = 0; i < 32; i++) {
        float magnitude = fabsf(x[i]);
        bound = magnitude > bound ? magnitude : bound;
    }
    float scale = bound / 127, inverse = inverse_of(scale);
    out = put_half(out, scale);
    for (int i = 0; i < 32; i++) {
        float scaled = x[i] * inverse, whole = (float)(int32_t)scaled;
        out[i] = (uint8_t)((int32_t)scaled + (int32_t)((scaled - whole) * 2));
    }
}

INLINE void encode_simple_block(const Format format, const float *x, uint8_t *out) {
    switch (format) {
    case Q4_0: encode_symmetric(x, 4, out); break;
    case Q4_1: encode_with_minimum(x, 4, out); break;
    case Q5_0: encode_symmetric(x, 5, out); break;
    case Q5_1: encode_with_minimum(x, 5, out); break;
    default: encode_bytes(x, out); /* Q8_0 */
    }
}

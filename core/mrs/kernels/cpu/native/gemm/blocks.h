/* Blocks of rows, in the layouts of GGUF files or as core/mrs/quantization/gguf makes them, as integer codes
 * and scales. */
#include <string.h>

#include "gemm/weights.h"
#include "half.h"

typedef struct {
    uint8_t codes[256];  /* in the order of columns; signed in Q8_0 */
    uint8_t scales[16];  /* integer scales, then integer minima, as weights.h stores them */
    uint16_t halves[2];  /* f16: scale, minimum */
    float floats[2];     /* the same in grouped formats */
    uint8_t exponent;    /* of MXFP4's scale */
} Block;

INLINE uint16_t read_half(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

INLINE void read_nibbles(const uint8_t *p, uint8_t *low, uint8_t *high, const int count) {
    for (int i = 0; i < count; i += 8) {
        uint64_t eight, mask = 0x0f0f0f0f0f0f0f0f;
        memcpy(&eight, p + i, 8);
        uint64_t lows = eight & mask, highs = eight >> 4 & mask;
        memcpy(low + i, &lows, 8);
        memcpy(high + i, &highs, 8);
    }
}

/* Adds bit i of 32 as bit 4 of code i, eight at a time: bit j is isolated in byte j, then any
 * byte that is not zero becomes 1. */
INLINE void add_fifth_bits(const uint8_t *p, uint8_t *codes) {
    const uint64_t ones = 0x0101010101010101, ladder = 0x8040201008040201;
    for (int i = 0; i < 4; i++) {
        uint64_t isolated = p[i] * ones & ladder, eight;
        memcpy(&eight, codes + 8 * i, 8);
        eight |= ((isolated + 0x7f * ones) >> 7 & ones) << 4;
        memcpy(codes + 8 * i, &eight, 8);
    }
}

/* The 2-bit codes of Q2_K and Q3_K: four runs of 32 columns share 32 bytes. */
INLINE void read_pairs(const uint8_t *p, uint8_t *codes) {
    for (int run = 0; run < 8; run++)
        for (int i = 0; i < 32; i++)
            codes[32 * run + i] = p[32 * (run >> 2) + i] >> (2 * (run & 3)) & 3;
}

/* The 8 scales and 8 minima of 6 bits in the 12 bytes of Q4_K and Q5_K. */
INLINE void read_k_scales(const uint8_t *p, uint8_t *scales) {
    for (int i = 0; i < 4; i++) {
        scales[i] = p[i] & 63;
        scales[8 + i] = p[4 + i] & 63;
        scales[4 + i] = (uint8_t)((p[8 + i] & 15) | (p[i] >> 6) << 4);
        scales[12 + i] = (uint8_t)(p[8 + i] >> 4 | (p[4 + i] >> 6) << 4);
    }
}

/* The 16 scales of 6 bits in the 12 bytes of Q3_K. */
INLINE void read_q3_scales(const uint8_t *p, uint8_t *scales) {
    for (int i = 0; i < 16; i++) {
        int low = i < 8 ? p[i] & 15 : p[i - 8] >> 4;
        scales[i] = (uint8_t)(low | (p[8 + (i & 3)] >> (2 * (i >> 2)) & 3) << 4);
    }
}

INLINE void read_q6(const uint8_t *low, const uint8_t *high, uint8_t *codes) {
    for (int n = 0; n < 2; n++, low += 64, high += 32, codes += 128) {
        read_nibbles(low, codes, codes + 64, 64);
        for (int run = 0; run < 4; run++)
            for (int i = 0; i < 32; i++)
                codes[32 * run + i] |= (uint8_t)((high[i] >> (2 * run) & 3) << 4);
    }
}

/* The codes of one unit of an INT format: runs of 8 bytes of 2 bits, and runs of 4 bytes of the
 * third bit; nibbles; or signed bytes. */
INLINE void read_int_codes(const int bits, const uint8_t *p, uint8_t *codes) {
    if (bits == 8) memcpy(codes, p, UNIT_COLUMNS);
    if (bits == 4) read_nibbles(p, codes, codes + 16, 16);
    for (int i = 0; i < UNIT_COLUMNS && bits < 4; i++) {
        codes[i] = p[i & 7] >> (2 * (i >> 3)) & 3;
        if (bits == 3) codes[i] |= (uint8_t)((p[8 + (i & 3)] >> (i >> 2) & 1) << 2);
    }
}

INLINE void read_grouped(const Format format, const uint8_t *p, const int units, Block *b) {
    const int floats = is_float(format) ? 1 : 2;
    const int bytes = code_bits(format) * UNIT_COLUMNS / 8;
    memcpy(b->floats, p, (size_t)floats * sizeof(float));
    for (int u = 0; u < units; u++)
        read_int_codes(code_bits(format), p + 4 * floats + u * bytes, b->codes + UNIT_COLUMNS * u);
}

INLINE void read_block(const Format format, const uint8_t *p, Block *b) {
    switch (format) {
    case Q4_0: case Q5_0: case Q8_0:
        b->halves[0] = read_half(p);
        p += 2;
        break;
    case Q4_1: case Q5_1: case Q4_K: case Q5_K:
        b->halves[0] = read_half(p);
        b->halves[1] = read_half(p + 2);
        p += 4;
        break;
    default:
        break;
    }
    switch (format) {
    case Q4_0: case Q4_1:
        read_nibbles(p, b->codes, b->codes + 16, 16);
        break;
    case Q5_0: case Q5_1:
        read_nibbles(p + 4, b->codes, b->codes + 16, 16);
        add_fifth_bits(p, b->codes);
        break;
    case Q8_0:
        memcpy(b->codes, p, 32);
        break;
    case MXFP4:
        b->exponent = p[0];
        read_nibbles(p + 1, b->codes, b->codes + 16, 16);
        break;
    case Q4_K:
        read_k_scales(p, b->scales);
        for (int i = 0; i < 4; i++)
            read_nibbles(p + 12 + 32 * i, b->codes + 64 * i, b->codes + 64 * i + 32, 32);
        break;
    case Q5_K:
        read_k_scales(p, b->scales);
        for (int i = 0; i < 4; i++)
            read_nibbles(p + 44 + 32 * i, b->codes + 64 * i, b->codes + 64 * i + 32, 32);
        for (int run = 0; run < 8; run++)
            for (int i = 0; i < 32; i++)
                b->codes[32 * run + i] |= (uint8_t)((p[12 + i] >> run & 1) << 4);
        break;
    case Q6_K:
        read_q6(p, p + 128, b->codes);
        memcpy(b->scales, p + 192, 16);
        b->halves[0] = read_half(p + 208);
        break;
    case Q2_K:
        memcpy(b->scales, p, 16);
        read_pairs(p + 16, b->codes);
        b->halves[0] = read_half(p + 80);
        b->halves[1] = read_half(p + 82);
        break;
    case Q3_K:
        read_pairs(p + 32, b->codes);
        for (int run = 0; run < 8; run++)
            for (int i = 0; i < 32; i++)
                b->codes[32 * run + i] |= (uint8_t)((p[i] >> run & 1) << 2);
        read_q3_scales(p + 96, b->scales);
        b->halves[0] = read_half(p + 108);
        break;
    default:
        break;
    }
}

/* Quantizes weights to blocks of a GGUF file; included once per instruction set. */
#include "quantize/encode_search.inc.h"
#include "quantize/encode_simple.inc.h"
#include "quantize/encode_weighted.inc.h"

/* Packs codes (runs, length), shifted and masked, into `length` bytes: byte i has the i-th code of
 * each run. */
INLINE uint8_t *put_bit_runs(uint8_t *p, const uint8_t *codes, const int length, const int runs,
                             const int shift, const int mask) {
    for (int i = 0; i < length; i++) {
        int bits = 0;
        for (int run = 0; run < runs; run++)
            bits |= (codes[run * length + i] >> shift & mask) << (8 / runs * run);
        p[i] = (uint8_t)bits;
    }
    return p + length;
}

/* The 8 scales and 8 minima of Q4_K and Q5_K in 12 bytes. */
INLINE uint8_t *put_k_scales(uint8_t *p, const uint8_t *scales, const uint8_t *minima) {
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(scales[i] | scales[4 + i] >> 4 << 6);
        p[4 + i] = (uint8_t)(minima[i] | minima[4 + i] >> 4 << 6);
        p[8 + i] = (uint8_t)((scales[4 + i] & 15) | minima[4 + i] << 4);
    }
    return p + 12;
}

INLINE void put_block(const Format format, uint8_t *p, const uint8_t *codes, const int8_t *scales,
                      const int8_t *minima, float d, float dmin) {
    const uint8_t *unsigned_scales = (const uint8_t *)scales;
    const uint8_t *unsigned_minima = (const uint8_t *)minima;
    switch (format) {
    case Q2_K:
        for (int i = 0; i < 16; i++) *p++ = (uint8_t)(unsigned_scales[i] | unsigned_minima[i] << 4);
        for (int i = 0; i < 256; i += 128) p = put_bit_runs(p, codes + i, 32, 4, 0, 3);
        put_half(put_half(p, d), dmin);
        break;
    case Q3_K:
        p = put_bit_runs(p, codes, 32, 8, 2, 1);
        for (int i = 0; i < 256; i += 128) p = put_bit_runs(p, codes + i, 32, 4, 0, 3);
        for (int i = 0; i < 8; i++)
            *p++ = (uint8_t)(((scales[i] + 32) & 15) | ((scales[8 + i] + 32) & 15) << 4);
        for (int i = 0; i < 4; i++, p++)
            for (int run = *p = 0; run < 4; run++)
                *p |= (uint8_t)((scales[4 * run + i] + 32) >> 4 << (2 * run));
        put_half(p, d);
        break;
    case Q4_K: case Q5_K:
        p = put_k_scales(put_half(put_half(p, d), dmin), unsigned_scales, unsigned_minima);
        if (format == Q5_K) p = put_bit_runs(p, codes, 32, 8, 4, 1);
        for (int i = 0; i < 256; i += 64) p = put_bit_runs(p, codes + i, 32, 2, 0, 15);
        break;
    default: /* Q6_K */
        for (int i = 0; i < 256; i += 128) p = put_bit_runs(p, codes + i, 64, 2, 0, 15);
        for (int i = 0; i < 256; i += 128) p = put_bit_runs(p, codes + i, 32, 4, 4, 3);
        memcpy(p, scales, 16);
        put_half(p + 16, d);
    }
}

/* Encodes as many super-blocks as have SUB_BLOCKS sub-blocks; `columns` is NULL or importance. */
INLINE void encode_lanes(const Format format, const int length, const float *x, const int blocks,
                         const Rows *columns, uint8_t *out) {
    const Layout *layout = &layouts[format - Q2_K];
    const int count = SUPER_BLOCK / length;
    Rows rows[32];
    Fit fit;
    uint8_t codes[2 * SUPER_BLOCK];
    int8_t scales[SUB_BLOCKS], minima[SUB_BLOCKS];
    transpose_in(x, rows, length);
    if (format == Q3_K || format == Q6_K)
        search_symmetric(layout, rows, columns, &fit);
    else
        search_with_minimum(layout, length, rows, columns, &fit);
    transpose_out(fit.q, codes, length);
    for (int lane = 0; lane < SUB_BLOCKS; lane++) {
        scales[lane] = (int8_t)fit.scales[lane];
        minima[lane] = (int8_t)fit.minima[lane];
    }
    for (int block = 0; block < blocks; block++)
        put_block(format, out + block * block_bytes(format), codes + block * SUPER_BLOCK,
                  scales + block * count, minima + block * count, fit.d[block], fit.dmin[block]);
}

/* Blocks of 256 with sub-blocks of `length`. */
INLINE void encode_k(const Format format, const int length, const void *x, const Type type,
                     int64_t count, const Importance *importance, int64_t first, uint8_t *out) {
    const int together = SUB_BLOCKS * length / SUPER_BLOCK;
    for (int64_t block = 0; block < count; block += together) {
        float values[2 * SUPER_BLOCK] = {0};
        const int blocks = count - block < together ? 1 : together;
        read_values(x, type, block * SUPER_BLOCK, blocks * SUPER_BLOCK, values);
        Rows columns[32];
        read_importance(importance, (first + block) * SUPER_BLOCK, length, columns);
        encode_lanes(format, length, values, blocks, importance->values ? columns : NULL,
                     out + block * block_bytes(format));
    }
}

/* Blocks of 32. */
INLINE void encode_simple(const Format format, const void *x, const Type type, int64_t count,
                          uint8_t *out) {
    for (int64_t block = 0; block < count; block++) {
        float values[32];
        read_values(x, type, block * 32, 32, values);
        encode_simple_block(format, values, out + block * block_bytes(format));
    }
}

/* Quantizes `count` blocks of x from block `first` of a matrix on; its values are of `type`. */
static void encode(Format format, const void *x, Type type, int64_t count,
                   const Importance *importance, int64_t first, uint8_t *out) {
    if (importance->values && format <= Q5_1) {
        encode_weighted(format, x, type, count, importance, first, out);
        return;
    }
    switch (format) {
    case Q4_0: encode_simple(Q4_0, x, type, count, out); break;
    case Q4_1: encode_simple(Q4_1, x, type, count, out); break;
    case Q5_0: encode_simple(Q5_0, x, type, count, out); break;
    case Q5_1: encode_simple(Q5_1, x, type, count, out); break;
    case Q8_0: encode_simple(Q8_0, x, type, count, out); break;
    case Q2_K: encode_k(Q2_K, 16, x, type, count, importance, first, out); break;
    case Q3_K: encode_k(Q3_K, 16, x, type, count, importance, first, out); break;
    case Q4_K: encode_k(Q4_K, 32, x, type, count, importance, first, out); break;
    case Q5_K: encode_k(Q5_K, 32, x, type, count, importance, first, out); break;
    case Q6_K: encode_k(Q6_K, 16, x, type, count, importance, first, out); break;
    default: break;
    }
}

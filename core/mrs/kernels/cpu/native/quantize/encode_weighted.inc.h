/* Quantizes blocks of 32 values to Q4_0, Q4_1, Q5_0 and Q5_1 by the importance of columns: the search
 * of sub-blocks of k-quants, sixteen at once. As `block_symmetric` and `block_with_minimum` of
 * core/mrs/quantization/gguf/k_search.py. Included by encode.inc.h after encode_search.inc.h, whose
 * Layout, Fit and Sums it uses, and encode_simple.inc.h, whose put_half it uses. */

/* Value i of sub-block s is row i, lane s. */
INLINE void transpose_in(const float *x, Rows *rows, const int length) {
    for (int i = 0; i < length; i++)
        for (int lane = 0; lane < SUB_BLOCKS; lane++) rows[i][lane] = x[lane * length + i];
}
INLINE void transpose_out(const Rows *rows, uint8_t *codes, const int length) {
    for (int i = 0; i < length; i++)
        for (int lane = 0; lane < SUB_BLOCKS; lane++)
            codes[lane * length + i] = (uint8_t)(int32_t)rows[i][lane];
}

/* `count` values of any type as floats. */
INLINE void read_values(const void *x, const Type type, int64_t start, const int count,
                        float *out) {
    for (int i = 0; i < count; i++)
        if (type == TYPE_F32)
            out[i] = ((const float *)x)[start + i];
        else if (type == TYPE_BF16)
            out[i] = float_of_bf16(((const uint16_t *)x)[start + i]);
        else
            out[i] = float_of_half(((const uint16_t *)x)[start + i]);
}

/* The importance of sixteen sub-blocks from value `start` of a matrix on, if it is known. */
INLINE void read_importance(const Importance *importance, int64_t start, const int length,
                            Rows *columns) {
    if (!importance->values) return;
    for (int lane = 0; lane < SUB_BLOCKS; lane++) {
        const float *some = importance->values + (start + lane * length) % importance->columns;
        for (int i = 0; i < length; i++) columns[i][lane] = some[i];
    }
}

static const Layout block_layouts[] = {
    {32, 8, 1, 8, {-0.6f, -0.2f, 0.2f, 0.6f, 1, 1.5f, 2, 2.5f}, {0}},
    {32, 16, 1, 8, {-0.6f, -0.2f, 0.2f, 0.6f, 1, 1.5f, 2, 2.5f}, {0}},
};

/* scale * code; fit->q and `scale` are the result. */
INLINE void search_symmetric_blocks(const Layout *layout, const Rows *x, const Rows *columns,
                                    Fit *fit, float *scale) {
    Rows none = {0};
    Sums sums;
    FOR_ROWS(first) fit_symmetric(layout, 32, first, x, columns, scale);
    for (int lane = 0; lane < SUB_BLOCKS; lane++) scale[lane] = round_scale_to_f16(scale[lane]);
    quantize_rows(layout, 32, -layout->levels, x, columns, scale, none, fit, &sums);
    for (int lane = 0; lane < SUB_BLOCKS; lane++)
        scale[lane] = round_scale_to_f16(sums.xq[lane] / fmaxf(sums.qq[lane], 1e-30f));
    quantize_rows(layout, 32, -layout->levels, x, columns, scale, none, fit, NULL);
    for (int i = 0; i < 32; i++)
        for (int lane = 0; lane < SUB_BLOCKS; lane++) fit->q[i][lane] += layout->levels;
}

/* scale * code + minimum, of any sign. The search is for values with a minimum below 0. */
INLINE void search_blocks_with_minimum(const Layout *layout, const Rows *x, const Rows *columns,
                                       Fit *fit, float *scale, float *minimum) {
    Rows below[32], highest, lift;
    for (int lane = 0; lane < SUB_BLOCKS; lane++) {
        highest[lane] = x[0][lane];
        for (int i = 1; i < 32; i++) highest[lane] = fmaxf(highest[lane], x[i][lane]);
        for (int i = 0; i < 32; i++) below[i][lane] = x[i][lane] - highest[lane];
    }
    FOR_ROWS(first) fit_with_minimum(layout, 32, first, below, columns, scale, minimum);
    for (int lane = 0; lane < SUB_BLOCKS; lane++) {
        scale[lane] = round_scale_to_f16(scale[lane]);
        minimum[lane] = float_of_half(half_of_float(highest[lane] - minimum[lane]));
        lift[lane] = -minimum[lane];
    }
    quantize_rows(layout, 32, 0, x, columns, scale, lift, fit, NULL);
}

INLINE void encode_weighted(const Format format, const void *x, const Type type, int64_t count,
                            const Importance *importance, int64_t first, uint8_t *out) {
    const int bits = format <= Q4_1 ? 4 : 5, symmetric = format == Q4_0 || format == Q5_0;
    for (int64_t block = 0; block < count; block += SUB_BLOCKS) {
        const int blocks = count - block < SUB_BLOCKS ? (int)(count - block) : SUB_BLOCKS;
        float values[32 * SUB_BLOCKS] = {0};
        uint8_t codes[32 * SUB_BLOCKS];
        Rows rows[32], columns[32], scale, minimum;
        Fit fit;
        for (int lane = 0; lane < SUB_BLOCKS; lane++) fit.scales[lane] = fit.minima[lane] = 1;
        read_values(x, type, block * 32, blocks * 32, values);
        read_importance(importance, (first + block) * 32, 32, columns);
        transpose_in(values, rows, 32);
        if (symmetric)
            search_symmetric_blocks(&block_layouts[bits - 4], rows, columns, &fit, scale);
        else
            search_blocks_with_minimum(&layouts[bits - 2], rows, columns, &fit, scale, minimum);
        transpose_out(fit.q, codes, 32);
        for (int lane = 0; lane < blocks; lane++) {
            int32_t some[32];
            uint8_t *p = put_half(out + (block + lane) * block_bytes(format), scale[lane]);
            for (int i = 0; i < 32; i++) some[i] = codes[lane * 32 + i];
            put_codes(symmetric ? p : put_half(p, minimum[lane]), some, bits);
        }
    }
}

/* Finds scales, minima and codes of super-blocks of 256 weights, for Q2_K to Q6_K; included once
 * per instruction set.
 *
 * The search is that of core/mrs/quantization/gguf/k_search.py, which explains it; layouts and
 * trials are those of core/mrs/quantization/gguf/k_encode.py. Sixteen sub-blocks are searched at
 * once: those of one super-block if sub-blocks have 16 values, or of two if they have 32.
 */
#include "half.h"
#include "quantize/encode_rows.inc.h"

typedef struct {
    int length;         /* values in a sub-block */
    float levels;       /* largest q; symmetric layouts have -levels … levels - 1 */
    float scale_levels; /* the same for the integer scales */
    int trials;
    float low[8], high[8]; /* steps that a trial leaves out at each end; symmetric: `low` only */
} Layout;

/* By the number of bits, from 2 on. */
static const Layout layouts[] = {
    [Q2_K - Q2_K] = {16, 3, 15, 6, {0.3f, 0, 0.3f, -0.6f, 0, 0.45f},
                     {0.3f, 0.45f, 0, 0.45f, 0.15f, -0.15f}},
    [Q3_K - Q2_K] = {16, 4, 32, 5, {-0.06f, 0.81f, -0.44f, 0.25f, 1}, {0}},
    [Q4_K - Q2_K] = {32, 15, 63, 8, {0, -0.75f, -0.25f, 0.25f, 0.25f, 0.25f, 0, 0},
                     {0, 0.25f, 0.25f, -0.25f, 0.5f, 0, 0.25f, -1}},
    [Q5_K - Q2_K] = {32, 31, 63, 8, {0, 0.25f, 0.25f, -0.25f, -1, 0, 0.5f, -0.25f},
                     {0, -0.75f, -0.25f, 0.25f, -1, -1, 0.25f, 0}},
    [Q6_K - Q2_K] = {16, 32, 128, 5, {0, 1, 2, 3, 3.88f}, {0}},
};

/* The result of the search for sixteen sub-blocks. */
typedef struct {
    Rows q[32]; /* q[i]: the i-th code of every sub-block */
    Rows scales, minima;
    float d[2], dmin[2]; /* of each super-block */
} Fit;

/* Sums over the values of each sub-block, weighted by importance. */
typedef struct {
    Rows q, qq, xq, x, one;
} Sums;

/* d rounded to half precision; subnormals are rounded up. */
INLINE float round_scale_to_f16(float d) {
    const float unit = 0x1p-24f;
    float units = fabsf(d) / unit;
    if (units < 1024) units = ceilf(units);
    if (units * unit > 65504.0f) units = 65504.0f / unit;
    return float_of_half(half_of_float(copysignf(units * unit, d)));
}

/* The sum of a[i] * b[i] over the lanes of one super-block. */
INLINE float dot_lanes(const float *a, const float *b, const int count) {
    float sum = 0;
    for (int i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* importance = that of the columns if it is known, else |x| + root mean square of the sub-block. */
INLINE void fill_importance(const Rows *x, const Rows *columns, Rows *importance,
                            const int length) {
    if (columns) {
        memcpy(importance, columns, (size_t)length * sizeof(Rows));
        return;
    }
    FOR_ROWS(first) {
        Row squares = row_broadcast(0), rms;
        for (int i = 0; i < length; i++) squares += row_load(x[i] + first) * row_load(x[i] + first);
        squares /= (float)length;
        for (int lane = 0; lane < LANES; lane++) rms[lane] = sqrtf(squares[lane]);
        for (int i = 0; i < length; i++)
            row_store(importance[i] + first, row_abs(row_load(x[i] + first)) + rms);
    }
}

/* The best scale and minimum of LANES sub-blocks. */
INLINE void fit_with_minimum(const Layout *layout, const int length, const int first,
                             const Rows *x, const Rows *importance, float *scale, float *minimum) {
    Row y[32], weight[32];
    Row lowest = row_broadcast(0), highest = row_load(x[0] + first);
    for (int i = 0; i < length; i++) {
        lowest = row_min(lowest, row_load(x[i] + first));
        highest = row_max(highest, row_load(x[i] + first));
    }
    Row step = (highest - lowest) / layout->levels, inverse = row_inverse_or_zero(step);
    Row total = row_broadcast(0), sum_y = row_broadcast(0);
    for (int i = 0; i < length; i++) {
        y[i] = (row_load(x[i] + first) - lowest) * inverse;
        weight[i] = row_load(importance[i] + first);
        total += weight[i];
        sum_y += weight[i] * y[i];
    }
    Row highest_shift = row_divide(-lowest, step);
    Row best_gain = row_broadcast(-INFINITY);
    Row best_slope = row_broadcast(0), best_shift = row_broadcast(0);
    for (int t = 0; t < layout->trials; t++) {
        float stretch = layout->levels / (layout->levels - layout->low[t] - layout->high[t]);
        Row offset = row_broadcast(-layout->low[t] * stretch), factor = row_broadcast(stretch);
        Row sum_q = row_broadcast(0), sum_qq = row_broadcast(0), sum_yq = row_broadcast(0);
        for (int i = 0; i < length; i++) {
            Row q = row_round(row_clamp(y[i] * factor + offset, 0, layout->levels));
            Row share = weight[i] * q;
            sum_q += share;
            sum_qq += share * q;
            sum_yq += share * y[i];
        }
        Row determinant = total * sum_qq - sum_q * sum_q;
        Row shift = (sum_qq * sum_y - sum_q * sum_yq) / determinant;
        shift = row_select(determinant > 1e-6f * total * sum_qq, shift, row_broadcast(0));
        shift = row_min(shift, highest_shift);
        Row slope = row_divide(sum_yq - shift * sum_q, sum_qq);
        Row gain = slope * (2 * (sum_yq - shift * sum_q) - slope * sum_qq);
        gain += shift * (2 * sum_y - shift * total);
        RowMask better = gain > best_gain;
        best_gain = row_select(better, gain, best_gain);
        best_slope = row_select(better, slope, best_slope);
        best_shift = row_select(better, shift, best_shift);
    }
    row_store(scale + first, best_slope * step);
    row_store(minimum + first, -(lowest + best_shift * step));
}

/* The best scale, of either sign, of LANES sub-blocks. */
INLINE void fit_symmetric(const Layout *layout, const int length, const int first, const Rows *x,
                          const Rows *importance, float *scale) {
    const float levels = layout->levels;
    Row y[32], weight[32], largest = row_broadcast(0);
    for (int i = 0; i < length; i++) {
        Row some = row_load(x[i] + first);
        largest = row_select(row_abs(some) > row_abs(largest), some, largest);
    }
    Row inverse = -levels * row_inverse_or_zero(largest);
    for (int i = 0; i < length; i++) {
        y[i] = row_load(x[i] + first) * inverse;
        weight[i] = row_load(importance[i] + first);
    }
    Row best_gain = row_broadcast(-INFINITY), best_slope = row_broadcast(0);
    for (int t = 0; t < layout->trials; t++) {
        Row factor = row_broadcast(1 - layout->low[t] / levels);
        Row sum_yq = row_broadcast(0), sum_qq = row_broadcast(0);
        for (int i = 0; i < length; i++) {
            Row q = row_round(row_clamp(y[i] * factor, -levels, levels - 1));
            Row share = weight[i] * q;
            sum_yq += share * y[i];
            sum_qq += share * q;
        }
        Row slope = row_divide(sum_yq, sum_qq), gain = slope * sum_yq;
        RowMask better = gain > best_gain;
        best_gain = row_select(better, gain, best_gain);
        best_slope = row_select(better, slope, best_slope);
    }
    row_store(scale + first, best_slope * largest / -levels);
}

/* q for the scales and minima of a fit, and its sums unless `sums` is NULL. */
INLINE void quantize_rows(const Layout *layout, const int length, const float low, const Rows *x,
                          const Rows *importance, const float *d, const float *dmin, Fit *fit,
                          Sums *sums) {
    FOR_ROWS(first) {
        Row inverse = row_inverse_or_zero(row_load(d + first) * row_load(fit->scales + first));
        Row lift = row_load(dmin + first) * row_load(fit->minima + first);
        Row q_sum = row_broadcast(0), qq_sum = row_broadcast(0), xq_sum = row_broadcast(0);
        Row x_sum = row_broadcast(0), total = row_broadcast(0);
        for (int i = 0; i < length; i++) {
            Row some = row_load(x[i] + first), weight = row_load(importance[i] + first);
            Row q = row_levels(some + lift, inverse, low, low < 0 ? -low - 1 : layout->levels);
            Row share = weight * q;
            row_store(fit->q[i] + first, q);
            q_sum += share;
            qq_sum += share * q;
            xq_sum += share * some;
            x_sum += weight * some;
            total += weight;
        }
        if (!sums) continue;
        row_store(sums->q + first, q_sum);
        row_store(sums->qq + first, qq_sum);
        row_store(sums->xq + first, xq_sum);
        row_store(sums->x + first, x_sum);
        row_store(sums->one + first, total);
    }
}

/* out = fitted / d, rounded: the integer scales or minima. */
INLINE void round_scales(const float *fitted, const float *d, float low, float high, float *out) {
    FOR_ROWS(first)
    row_store(out + first, row_levels(row_load(fitted + first),
                                      row_inverse_or_zero(row_load(d + first)), low, high));
}

INLINE void spread(const float *values, const int count, float *out) {
    for (int lane = 0; lane < SUB_BLOCKS; lane++) out[lane] = values[lane / count];
}

/* Least squares fit of d and dmin of one super-block to its q. */
INLINE void refit_block(Fit *fit, const Sums *sums, const int block, const int count) {
    const int first = block * count;
    const float *scales = fit->scales + first, *minima = fit->minima + first;
    Rows scale_squares, minimum_squares, products;
    for (int i = 0; i < count; i++) {
        scale_squares[i] = scales[i] * scales[i];
        minimum_squares[i] = minima[i] * minima[i];
        products[i] = scales[i] * minima[i];
    }
    float aa = dot_lanes(scale_squares, sums->qq + first, count);
    float bb = dot_lanes(minimum_squares, sums->one + first, count);
    float ab = dot_lanes(products, sums->q + first, count);
    float xa = dot_lanes(scales, sums->xq + first, count);
    float xb = dot_lanes(minima, sums->x + first, count);
    float determinant = aa * bb - ab * ab;
    float d = (xa * bb - xb * ab) / determinant, dmin = (xa * ab - xb * aa) / determinant;
    if (determinant > 1e-6f * aa * bb && d > 0 && dmin > 0) {
        fit->d[block] = round_scale_to_f16(d);
        fit->dmin[block] = round_scale_to_f16(dmin);
    }
}

INLINE void search_with_minimum(const Layout *layout, const int length, const Rows *x,
                                const Rows *columns, Fit *fit) {
    const int count = SUPER_BLOCK / length; /* lanes of a super-block */
    const float top = layout->scale_levels;
    Rows importance[32], scale, minimum, d, dmin;
    Sums sums;
    fill_importance(x, columns, importance, length);
    FOR_ROWS(first) fit_with_minimum(layout, length, first, x, importance, scale, minimum);
    for (int block = 0; block < SUB_BLOCKS / count; block++) {
        float largest_scale = 0, largest_minimum = 0;
        for (int lane = block * count; lane < (block + 1) * count; lane++) {
            if (scale[lane] > largest_scale) largest_scale = scale[lane];
            if (minimum[lane] > largest_minimum) largest_minimum = minimum[lane];
        }
        fit->d[block] = round_scale_to_f16(largest_scale / top);
        fit->dmin[block] = round_scale_to_f16(largest_minimum / top);
    }
    spread(fit->d, count, d);
    spread(fit->dmin, count, dmin);
    round_scales(scale, d, 0, top, fit->scales);
    round_scales(minimum, dmin, 0, top, fit->minima);
    quantize_rows(layout, length, 0, x, importance, d, dmin, fit, &sums);
    for (int block = 0; block < SUB_BLOCKS / count; block++) refit_block(fit, &sums, block, count);
    spread(fit->d, count, d);
    spread(fit->dmin, count, dmin);
    /* Then least squares fits of each scale, and with those of each minimum. */
    FOR_ROWS(first) {
        Row lift = row_load(dmin + first) * row_load(fit->minima + first);
        Row fitted = row_load(sums.xq + first) + lift * row_load(sums.q + first);
        row_store(scale + first, row_divide(fitted, row_load(sums.qq + first)));
    }
    round_scales(scale, d, 0, top, fit->scales);
    FOR_ROWS(first) {
        Row slope = row_load(d + first) * row_load(fit->scales + first);
        Row fitted = slope * row_load(sums.q + first) - row_load(sums.x + first);
        row_store(minimum + first, row_divide(fitted, row_load(sums.one + first)));
    }
    round_scales(minimum, dmin, 0, top, fit->minima);
    quantize_rows(layout, length, 0, x, importance, d, dmin, fit, NULL);
}

/* One super-block of 16 sub-blocks; q becomes unsigned. */
INLINE void search_symmetric(const Layout *layout, const Rows *x, const Rows *columns, Fit *fit) {
    const int length = SUPER_BLOCK / SUB_BLOCKS;
    const float levels = layout->levels, low = -layout->scale_levels, high = -low - 1;
    Rows importance[32], scale, d, squares;
    Sums sums;
    fill_importance(x, columns, importance, length);
    FOR_ROWS(first) fit_symmetric(layout, length, first, x, importance, scale);
    float largest = scale[0];
    for (int lane = 1; lane < SUB_BLOCKS; lane++)
        if (fabsf(scale[lane]) > fabsf(largest)) largest = scale[lane];
    fit->d[0] = round_scale_to_f16(largest / low);
    fit->dmin[0] = 0;
    spread(fit->d, SUB_BLOCKS, d);
    memset(fit->minima, 0, sizeof fit->minima);
    round_scales(scale, d, low, high, fit->scales);
    quantize_rows(layout, length, -levels, x, importance, d, fit->minima, fit, &sums);
    /* Least squares fits of d to these q, then of each scale. */
    for (int lane = 0; lane < SUB_BLOCKS; lane++)
        squares[lane] = fit->scales[lane] * fit->scales[lane];
    float weight = dot_lanes(squares, sums.qq, SUB_BLOCKS);
    if (weight > 0)
        fit->d[0] = round_scale_to_f16(dot_lanes(fit->scales, sums.xq, SUB_BLOCKS) / weight);
    spread(fit->d, SUB_BLOCKS, d);
    FOR_ROWS(first)
    row_store(scale + first, row_divide(row_load(sums.xq + first), row_load(sums.qq + first)));
    round_scales(scale, d, low, high, fit->scales);
    quantize_rows(layout, length, -levels, x, importance, d, fit->minima, fit, NULL);
    for (int i = 0; i < length; i++)
        for (int lane = 0; lane < SUB_BLOCKS; lane++) fit->q[i][lane] += levels;
}

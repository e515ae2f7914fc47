/* Finds scales, minima and codes of super-blocks of 256 weights, for Q2_K to Q6_K.
 *
 * The search is that of core/mrs/quants/k_search.py, which says what it does and why; layouts and
 * trials are those of core/mrs/quants/k_encode.py. Here sixteen sub-blocks are searched side by
 * side: those of one super-block where sub-blocks are 16 long, of two where they are 32 long.
 */
#include "encode_rows.h"
#include "half.h"

typedef struct {
    int length;         /* numbers in a sub-block */
    float levels;       /* largest q; symmetric layouts have -levels … levels - 1 */
    float scale_levels; /* the same for the integer scales */
    int trials;
    float low[8], high[8]; /* steps that a trial leaves out; symmetric layouts use `low` only */
} Layout;

static const Layout layouts[] = {
    {16, 3, 15, 6, {0.3f, 0, 0.3f, -0.6f, 0, 0.45f}, {0.3f, 0.45f, 0, 0.45f, 0.15f, -0.15f}},
    {16, 4, 32, 5, {-0.06f, 0.81f, -0.44f, 0.25f, 1}, {0}},
    {32, 15, 63, 8, {0, -0.75f, -0.25f, 0.25f, 0.25f, 0.25f, 0, 0},
     {0, 0.25f, 0.25f, -0.25f, 0.5f, 0, 0.25f, -1}},
    {32, 31, 63, 8, {0, 0.25f, 0.25f, -0.25f, -1, 0, 0.5f, -0.25f},
     {0, -0.75f, -0.25f, 0.25f, -1, -1, 0.25f, 0}},
    {16, 32, 128, 5, {0, 1, 2, 3, 3.88f}, {0}},
};

/* What the search makes of the sixteen sub-blocks. */
typedef struct {
    Rows q[32]; /* q[i]: the i-th number of every sub-block */
    Rows scales, minima;
    float d[2], dmin[2]; /* of each super-block */
} Fit;

/* Weighted sums over the numbers of each sub-block. */
typedef struct {
    Rows q, qq, xq, x, one;
} Sums;

/* d as half precision holds it; subnormal halves are rounded up. */
INLINE float storable(float d) {
    const float unit = 0x1p-24f;
    float units = fabsf(d) / unit;
    if (units < 1024) units = ceilf(units);
    if (units * unit > 65504.0f) units = 65504.0f / unit;
    return float_of_half(half_of_float(copysignf(units * unit, d)));
}

/* The sum of a[i] * b[i] over the lanes of one super-block. */
INLINE float product_of_lanes(const float *a, const float *b, const int count) {
    float sum = 0;
    for (int i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* Each weight's share in the error. */
INLINE void weigh(const Rows *x, Rows *importance, const int length) {
    FOR_ROWS(first) {
        Row squares = row_of(0), rms;
        for (int i = 0; i < length; i++) squares += row_at(x[i] + first) * row_at(x[i] + first);
        squares /= (float)length;
        for (int lane = 0; lane < LANES; lane++) rms[lane] = sqrtf(squares[lane]);
        for (int i = 0; i < length; i++)
            row_put(importance[i] + first, row_magnitude(row_at(x[i] + first)) + rms);
    }
}

/* The best scale and minimum of LANES sub-blocks. */
INLINE void fit_with_minimum(const Layout *layout, const int length, const int first,
                             const Rows *x, const Rows *importance, float *scale, float *minimum) {
    Row y[32], weight[32];
    Row lowest = row_of(0), highest = row_at(x[0] + first);
    for (int i = 0; i < length; i++) {
        lowest = row_least(lowest, row_at(x[i] + first));
        highest = row_most(highest, row_at(x[i] + first));
    }
    Row step = (highest - lowest) / layout->levels, inverse = row_inverse(step);
    Row total = row_of(0), sum_y = row_of(0);
    for (int i = 0; i < length; i++) {
        y[i] = (row_at(x[i] + first) - lowest) * inverse;
        weight[i] = row_at(importance[i] + first);
        total += weight[i];
        sum_y += weight[i] * y[i];
    }
    Row highest_shift = row_over(-lowest, step);
    Row best_gain = row_of(-INFINITY), best_slope = row_of(0), best_shift = row_of(0);
    for (int t = 0; t < layout->trials; t++) {
        float stretch = layout->levels / (layout->levels - layout->low[t] - layout->high[t]);
        Row offset = row_of(-layout->low[t] * stretch), factor = row_of(stretch);
        Row sum_q = row_of(0), sum_qq = row_of(0), sum_yq = row_of(0);
        for (int i = 0; i < length; i++) {
            Row q = row_round(row_clamp(y[i] * factor + offset, 0, layout->levels));
            Row share = weight[i] * q;
            sum_q += share;
            sum_qq += share * q;
            sum_yq += share * y[i];
        }
        Row determinant = total * sum_qq - sum_q * sum_q;
        Row shift = (sum_qq * sum_y - sum_q * sum_yq) / determinant;
        shift = row_pick(determinant > 1e-6f * total * sum_qq, shift, row_of(0));
        shift = row_least(shift, highest_shift);
        Row slope = row_over(sum_yq - shift * sum_q, sum_qq);
        Row gain = slope * (2 * (sum_yq - shift * sum_q) - slope * sum_qq);
        gain += shift * (2 * sum_y - shift * total);
        RowMask better = gain > best_gain;
        best_gain = row_pick(better, gain, best_gain);
        best_slope = row_pick(better, slope, best_slope);
        best_shift = row_pick(better, shift, best_shift);
    }
    row_put(scale + first, best_slope * step);
    row_put(minimum + first, -(lowest + best_shift * step));
}

/* The best scale, of either sign, of LANES sub-blocks. */
INLINE void fit_symmetric(const Layout *layout, const int length, const int first, const Rows *x,
                          const Rows *importance, float *scale) {
    const float levels = layout->levels;
    Row y[32], weight[32], largest = row_of(0);
    for (int i = 0; i < length; i++) {
        Row some = row_at(x[i] + first);
        largest = row_pick(row_magnitude(some) > row_magnitude(largest), some, largest);
    }
    Row inverse = -levels * row_inverse(largest);
    for (int i = 0; i < length; i++) {
        y[i] = row_at(x[i] + first) * inverse;
        weight[i] = row_at(importance[i] + first);
    }
    Row best_gain = row_of(-INFINITY), best_slope = row_of(0);
    for (int t = 0; t < layout->trials; t++) {
        Row factor = row_of(1 - layout->low[t] / levels);
        Row sum_yq = row_of(0), sum_qq = row_of(0);
        for (int i = 0; i < length; i++) {
            Row q = row_round(row_clamp(y[i] * factor, -levels, levels - 1));
            Row share = weight[i] * q;
            sum_yq += share * y[i];
            sum_qq += share * q;
        }
        Row slope = row_over(sum_yq, sum_qq), gain = slope * sum_yq;
        RowMask better = gain > best_gain;
        best_gain = row_pick(better, gain, best_gain);
        best_slope = row_pick(better, slope, best_slope);
    }
    row_put(scale + first, best_slope * largest / -levels);
}

/* q for the scales and minima of a fit, and, where asked for, the sums that go with them. */
INLINE void quantize_rows(const Layout *layout, const int length, const float low, const Rows *x,
                          const Rows *importance, const float *d, const float *dmin, Fit *fit,
                          Sums *sums) {
    FOR_ROWS(first) {
        Row inverse = row_inverse(row_at(d + first) * row_at(fit->scales + first));
        Row lift = row_at(dmin + first) * row_at(fit->minima + first);
        Row q_sum = row_of(0), qq_sum = row_of(0), xq_sum = row_of(0), x_sum = row_of(0);
        Row total = row_of(0);
        for (int i = 0; i < length; i++) {
            Row some = row_at(x[i] + first), weight = row_at(importance[i] + first);
            Row q = row_levels(some + lift, inverse, low, low < 0 ? -low - 1 : layout->levels);
            Row share = weight * q;
            row_put(fit->q[i] + first, q);
            q_sum += share;
            qq_sum += share * q;
            xq_sum += share * some;
            x_sum += weight * some;
            total += weight;
        }
        if (!sums) continue;
        row_put(sums->q + first, q_sum);
        row_put(sums->qq + first, qq_sum);
        row_put(sums->xq + first, xq_sum);
        row_put(sums->x + first, x_sum);
        row_put(sums->one + first, total);
    }
}

/* Integers nearest to fitted scales or minima, which are multiples of each lane's d. */
INLINE void round_scales(const float *fitted, const float *d, float low, float high, float *out) {
    FOR_ROWS(first)
        row_put(out + first,
                row_levels(row_at(fitted + first), row_inverse(row_at(d + first)), low, high));
}

INLINE void spread(const float *values, const int count, float *out) {
    for (int lane = 0; lane < SUB_BLOCKS; lane++) out[lane] = values[lane / count];
}

/* Least squares in d and dmin of one super-block for its q, whose first lane is `first`. */
INLINE void refit_block(Fit *fit, const Sums *sums, const int block, const int count) {
    const int first = block * count;
    const float *scales = fit->scales + first, *minima = fit->minima + first;
    Rows scale_squares, minimum_squares, products;
    for (int i = 0; i < count; i++) {
        scale_squares[i] = scales[i] * scales[i];
        minimum_squares[i] = minima[i] * minima[i];
        products[i] = scales[i] * minima[i];
    }
    float aa = product_of_lanes(scale_squares, sums->qq + first, count);
    float bb = product_of_lanes(minimum_squares, sums->one + first, count);
    float ab = product_of_lanes(products, sums->q + first, count);
    float xa = product_of_lanes(scales, sums->xq + first, count);
    float xb = product_of_lanes(minima, sums->x + first, count);
    float determinant = aa * bb - ab * ab;
    float d = (xa * bb - xb * ab) / determinant, dmin = (xa * ab - xb * aa) / determinant;
    if (determinant > 1e-6f * aa * bb && d > 0 && dmin > 0) {
        fit->d[block] = storable(d);
        fit->dmin[block] = storable(dmin);
    }
}

INLINE void search_with_minimum(const Layout *layout, const int length, const Rows *x, Fit *fit) {
    const int count = SUPER_BLOCK / length; /* lanes of a super-block */
    const float top = layout->scale_levels;
    Rows importance[32], scale, minimum, d, dmin;
    Sums sums;
    weigh(x, importance, length);
    FOR_ROWS(first) fit_with_minimum(layout, length, first, x, importance, scale, minimum);
    for (int block = 0; block < SUB_BLOCKS / count; block++) {
        float largest_scale = 0, largest_minimum = 0;
        for (int lane = block * count; lane < (block + 1) * count; lane++) {
            if (scale[lane] > largest_scale) largest_scale = scale[lane];
            if (minimum[lane] > largest_minimum) largest_minimum = minimum[lane];
        }
        fit->d[block] = storable(largest_scale / top);
        fit->dmin[block] = storable(largest_minimum / top);
    }
    spread(fit->d, count, d);
    spread(fit->dmin, count, dmin);
    round_scales(scale, d, 0, top, fit->scales);
    round_scales(minimum, dmin, 0, top, fit->minima);
    quantize_rows(layout, length, 0, x, importance, d, dmin, fit, &sums);
    for (int block = 0; block < SUB_BLOCKS / count; block++) refit_block(fit, &sums, block, count);
    spread(fit->d, count, d);
    spread(fit->dmin, count, dmin);
    /* Then least squares in each scale, and with that in each minimum. */
    FOR_ROWS(first) {
        Row lift = row_at(dmin + first) * row_at(fit->minima + first);
        Row fitted = row_at(sums.xq + first) + lift * row_at(sums.q + first);
        row_put(scale + first, row_over(fitted, row_at(sums.qq + first)));
    }
    round_scales(scale, d, 0, top, fit->scales);
    FOR_ROWS(first) {
        Row slope = row_at(d + first) * row_at(fit->scales + first);
        Row fitted = slope * row_at(sums.q + first) - row_at(sums.x + first);
        row_put(minimum + first, row_over(fitted, row_at(sums.one + first)));
    }
    round_scales(minimum, dmin, 0, top, fit->minima);
    quantize_rows(layout, length, 0, x, importance, d, dmin, fit, NULL);
}

/* One super-block of 16 sub-blocks; q becomes unsigned. */
INLINE void search_symmetric(const Layout *layout, const Rows *x, Fit *fit) {
    const int length = SUPER_BLOCK / SUB_BLOCKS;
    const float levels = layout->levels, low = -layout->scale_levels, high = -low - 1;
    Rows importance[32], scale, d, squares;
    Sums sums;
    weigh(x, importance, length);
    FOR_ROWS(first) fit_symmetric(layout, length, first, x, importance, scale);
    float largest = scale[0];
    for (int lane = 1; lane < SUB_BLOCKS; lane++)
        if (fabsf(scale[lane]) > fabsf(largest)) largest = scale[lane];
    fit->d[0] = storable(largest / low);
    fit->dmin[0] = 0;
    spread(fit->d, SUB_BLOCKS, d);
    memset(fit->minima, 0, sizeof fit->minima);
    round_scales(scale, d, low, high, fit->scales);
    quantize_rows(layout, length, -levels, x, importance, d, fit->minima, fit, &sums);
    /* Least squares in d for these q, then in each scale. */
    for (int lane = 0; lane < SUB_BLOCKS; lane++)
        squares[lane] = fit->scales[lane] * fit->scales[lane];
    float weight = product_of_lanes(squares, sums.qq, SUB_BLOCKS);
    if (weight > 0) fit->d[0] = storable(product_of_lanes(fit->scales, sums.xq, SUB_BLOCKS) / weight);
    spread(fit->d, SUB_BLOCKS, d);
    FOR_ROWS(first)
        row_put(scale + first, row_over(row_at(sums.xq + first), row_at(sums.qq + first)));
    round_scales(scale, d, low, high, fit->scales);
    quantize_rows(layout, length, -levels, x, importance, d, fit->minima, fit, NULL);
    for (int i = 0; i < length; i++)
        for (int lane = 0; lane < SUB_BLOCKS; lane++) fit->q[i][lane] += levels;
}

/* Arithmetic on one number of each of LANES sub-blocks, in the compiler's own vector type. */
#include <math.h>
#include <string.h>

#include "weights.h"

#define SUB_BLOCKS 16
#define SUPER_BLOCK 256

/* One number of each of LANES sub-blocks. */
typedef float Row __attribute__((vector_size(4 * LANES)));
typedef int32_t RowMask __attribute__((vector_size(4 * LANES)));
/* One number of each of the sixteen. */
typedef float Rows[SUB_BLOCKS] __attribute__((aligned(64)));

#define FOR_ROWS(first) for (int first = 0; first < SUB_BLOCKS; first += LANES)

INLINE Row row_of(float v) { return (Row){0} + v; }
INLINE Row row_at(const float *p) {
    Row a;
    memcpy(&a, p, sizeof a);
    return a;
}
INLINE void row_put(float *p, Row a) { memcpy(p, &a, sizeof a); }
INLINE Row row_pick(RowMask mask, Row a, Row b) {
    return (Row)((mask & (RowMask)a) | (~mask & (RowMask)b));
}
#if defined(__AVX512F__)
INLINE Row row_least(Row a, Row b) { return (Row)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE Row row_most(Row a, Row b) { return (Row)_mm512_max_ps((__m512)a, (__m512)b); }
#elif defined(__AVX__)
INLINE Row row_least(Row a, Row b) { return (Row)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE Row row_most(Row a, Row b) { return (Row)_mm256_max_ps((__m256)a, (__m256)b); }
#else
INLINE Row row_least(Row a, Row b) { return row_pick(a < b, a, b); }
INLINE Row row_most(Row a, Row b) { return row_pick(a > b, a, b); }
#endif
INLINE Row row_magnitude(Row a) { return (Row)((RowMask)a & 0x7fffffff); }
/* To the nearest integer, for |a| < 2^22: the sum has no bits below one. */
INLINE Row row_round(Row a) { return a + 12582912.0f - 12582912.0f; }
INLINE Row row_clamp(Row a, float low, float high) {
    return row_least(row_most(a, row_of(low)), row_of(high));
}
/* 1 / a, and 0 where a is 0. */
INLINE Row row_inverse(Row a) { return row_pick(a == 0.0f, row_of(0), 1.0f / a); }
/* a / b for b >= 0, and something finite where b is 0. */
INLINE Row row_over(Row a, Row b) { return a / row_most(b, row_of(1e-30f)); }

/* Nearest integers to a * inverse; the clamp comes first, so that huge quotients round right. */
INLINE Row row_levels(Row a, Row inverse, float low, float high) {
    return row_round(row_clamp(a * inverse, low - 0.25f, high + 0.25f));
}

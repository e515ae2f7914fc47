/* Arithmetic on one value of each of LANES sub-blocks, in the compiler's own vector type; included
 * once per instruction set. */
#include <math.h>
#include <string.h>

#include "mrs.h"

#define SUB_BLOCKS 16
#define SUPER_BLOCK 256

/* One value of each of LANES sub-blocks. */
typedef float Row __attribute__((vector_size(4 * LANES)));
typedef int32_t RowMask __attribute__((vector_size(4 * LANES)));
/* One value of each of the sixteen. */
typedef float Rows[SUB_BLOCKS] __attribute__((aligned(64)));

#define FOR_ROWS(first) for (int first = 0; first < SUB_BLOCKS; first += LANES)

INLINE Row row_broadcast(float v) { return (Row){0} + v; }
INLINE Row row_load(const float *p) {
    Row a;
    memcpy(&a, p, sizeof a);
    return a;
}
INLINE void row_store(float *p, Row a) { memcpy(p, &a, sizeof a); }
INLINE Row row_select(RowMask mask, Row a, Row b) {
    return (Row)((mask & (RowMask)a) | (~mask & (RowMask)b));
}
#if defined(__AVX512F__)
INLINE Row row_min(Row a, Row b) { return (Row)_mm512_min_ps((__m512)a, (__m512)b); }
INLINE Row row_max(Row a, Row b) { return (Row)_mm512_max_ps((__m512)a, (__m512)b); }
#elif defined(__AVX__)
INLINE Row row_min(Row a, Row b) { return (Row)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE Row row_max(Row a, Row b) { return (Row)_mm256_max_ps((__m256)a, (__m256)b); }
#else
INLINE Row row_min(Row a, Row b) { return row_select(a < b, a, b); }
INLINE Row row_max(Row a, Row b) { return row_select(a > b, a, b); }
#endif
INLINE Row row_abs(Row a) { return (Row)((RowMask)a & 0x7fffffff); }
/* The nearest integer, for |a| < 2^22: the sum has no fraction bits. */
INLINE Row row_round(Row a) { return a + 12582912.0f - 12582912.0f; }
INLINE Row row_clamp(Row a, float low, float high) {
    return row_min(row_max(a, row_broadcast(low)), row_broadcast(high));
}
/* 1 / a, or 0 if a is 0. */
INLINE Row row_inverse_or_zero(Row a) { return row_select(a == 0.0f, row_broadcast(0), 1.0f / a); }
/* a / b for b >= 0; finite if b is 0. */
INLINE Row row_divide(Row a, Row b) { return a / row_max(b, row_broadcast(1e-30f)); }

/* The nearest integers to a * inverse in [low, high]; clamped first, since row_round needs small
 * values. */
INLINE Row row_levels(Row a, Row inverse, float low, float high) {
    return row_round(row_clamp(a * inverse, low - 0.25f, high + 0.25f));
}

/* Products of activations with packed matrices. */
#ifndef MRS_PRODUCTS_H
#define MRS_PRODUCTS_H

#include "mrs.h"

#define EXPORT __attribute__((visibility("default")))

typedef struct {
    const Path *path;
    int64_t format, rows, columns;
    uint8_t *packed;
    bool *subnormal; /* for each group of BF16 weights: whether any is subnormal; others: NULL */
} Matrix;

#define MAX_FACTORS 4

/* A matrix and where its results (tokens, rows) go; to them `added` is added, unless it is NULL. */
typedef struct {
    const Matrix *matrix;
    void *out;
    const float *added;
} Factor;

/* Multiplies x (tokens, columns) with up to MAX_FACTORS transposed matrices of as many columns.
 * x and the results are of `type`; with `added` that is TYPE_F32. Returns false when memory for
 * the activations is missing. */
bool multiply_each(const Factor *factors, int count, const void *x, Type type, int64_t tokens,
                   int threads);

static inline int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

#endif

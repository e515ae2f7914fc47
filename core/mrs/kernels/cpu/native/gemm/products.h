/* Products of activations with packed matrices. */
#ifndef MRS_PRODUCTS_H
#define MRS_PRODUCTS_H

#include "mrs.h"

typedef struct {
    const KernelTable *kernels;
    int64_t format, rows, columns;
    uint8_t *packed;
    bool *subnormal; /* for each group of BF16 weights: whether any is subnormal; others: NULL */
    const int32_t *order; /* which column of x each column is multiplied with; NULL: its own */
    bool residuals; /* whether x has a second row, for what rounding it leaves */
} Matrix;

static inline int64_t groups_of(const Matrix *m) { return divide_up(m->rows, GROUP_ROWS); }

#define MAX_OPERANDS 4

/* A matrix (rows, columns), and where its results (tokens, rows) go. `added` (tokens, rows) is
 * added to them, unless it is NULL. */
typedef struct {
    const Matrix *matrix;
    void *out;
    const float *added;
} MatmulOperand;

/* out = x times the transposed matrix, for up to MAX_OPERANDS matrices of as many columns.
 * x (tokens, columns) and the results are of `type`, which must be TYPE_F32 where `added` is used.
 * No results may overlap x: a thread may read it when another has written some of them.
 * Returns false if memory for the activations is missing. */
bool multiply_each(const MatmulOperand *operands, int count, const void *x, Type type,
                   int64_t tokens, int threads);

/* A root-mean-square norm with weights (columns), and room for what is normed (tokens, columns). */
typedef struct {
    const float *weight;
    float eps, *out;
} Norm;

/* The same for the norm of x, all in TYPE_F32. `norm.out` is written only if there are many tokens;
 * it may be x. */
bool multiply_normed(const MatmulOperand *operands, int count, Norm norm, const float *x,
                     int64_t tokens, int threads);

/* As `mrs_decode` in api.c, for ids that are checked. */
void decode_matrix(const Matrix *matrix, const int64_t *ids, int64_t count, Type type, void *out,
                   int threads);

#endif

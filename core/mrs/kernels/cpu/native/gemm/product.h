/* One product of activations with several matrices, while it is computed. */
#ifndef MRS_PRODUCT_H
#define MRS_PRODUCT_H

#include <string.h>

#include "gemm/products.h"
#include "half.h"

/* Activations as the kernels of one format read them, in panels of `width` tokens. */
typedef struct {
    Format format;  /* how the weights are multiplied */
    bool is_wide;   /* by the kernel for many tokens */
    int token_rows; /* 2: a token's values, rounded, and what that leaves of them; otherwise 1 */
    int width;      /* in such rows */
    int64_t panels, panel_bytes;
    const int32_t *order; /* of the columns, as in Matrix */
    int form;             /* the first operand that reads them in the same form */
    int64_t offset;       /* in `packed` of the product */
} PackedActivations;

typedef struct {
    const MatmulOperand *operands;
    int count;
    PackedActivations activations[MAX_OPERANDS]; /* of each operand */
    const void *x;                               /* (tokens, columns) of `type` */
    Type type;
    int64_t tokens, columns;
    Norm norm;       /* of x, before it is packed; its weight may be NULL */
    uint8_t *packed; /* NULL until the activations are packed */
    int64_t packed_bytes;
    int64_t number; /* of all products of the process, from 1 on */
} Product;

/* The first panels of an operand's activations. */
static inline uint8_t *panels_of(const Product *p, const PackedActivations *a) {
    return p->packed + a->offset;
}

/* Plans the activations of all operands, and packs them if that is work for several threads.
 * Returns false if memory is missing. */
bool pack_activations(Product *product, int threads);
void free_activations(Product *product);

/* Packs all activations into memory of this thread, until it does so again. */
void pack_own_activations(Product *product);

/* Copies results (tokens, size) of the rows from `row` on to the operand's output, from `token` on,
 * without the rows of padding. */
static inline void store_results(const Product *p, const MatmulOperand *operand,
                                 const float *results, const int64_t size, int64_t token,
                                 int64_t tokens, int64_t row) {
    const int64_t rows = operand->matrix->rows, count = at_most(size, rows - row);
    for (int64_t t = 0; t < tokens; t++, results += size) {
        const int64_t offset = (token + t) * rows + row;
        float *out = (float *)operand->out + offset;
        if (operand->added)
            for (int64_t i = 0; i < count; i++) out[i] = operand->added[offset + i] + results[i];
        else if (p->type == TYPE_F32 && count == size) /* inlined, since the size is known */
            memcpy(out, results, (size_t)size * sizeof(float));
        else if (p->type == TYPE_F32)
            memcpy(out, results, (size_t)count * sizeof(float));
        else
            for (int64_t i = 0; i < count; i++)
                ((uint16_t *)operand->out)[offset + i] = bf16_of_float(results[i]);
    }
}

#endif

/* One product of activations with several matrices, while it is computed. */
#ifndef MRS_PRODUCT_H
#define MRS_PRODUCT_H

#include <string.h>

#include "gemm/products.h"
#include "half.h"

/* Activations as the kernels of one format read them, in panels of `width` tokens. */
typedef struct {
    Format format; /* how the weights are multiplied */
    bool is_prompt_gemm;
    int width;
    int64_t panels, panel_bytes;
    uint8_t *data;
} PackedActivations;

typedef struct {
    const MatmulOperand *operands;
    int count;
    PackedActivations activations[MAX_OPERANDS]; /* of each operand; several may share `data` */
    const void *x;                               /* (tokens, columns) of `type` */
    Type type;
    int64_t tokens, columns;
    int64_t task_groups; /* groups of rows in a task */
    _Atomic bool failed; /* memory is missing */
} Product;

/* Packs the activations for operand `index`, unless an earlier operand reads them in the same
 * form. Returns false if memory is missing. */
bool pack_activations(Product *product, int index, int threads);
void free_activations(Product *product);

/* Groups first to end-1 of an operand's matrix times all tokens, with kernels for prompts. Returns
 * false if memory is missing. */
bool multiply_tiles(const Product *product, int index, int64_t first, int64_t end);

/* Copies results (tokens, GROUP_ROWS) of the group that begins at `row` to the operand's output,
 * from `token` on, without the rows of padding. */
static inline void store_results(const Product *p, const MatmulOperand *operand,
                                 const float *results, int64_t token, int64_t tokens, int64_t row) {
    const int64_t rows = operand->matrix->rows, count = at_most(GROUP_ROWS, rows - row);
    for (int64_t t = 0; t < tokens; t++, results += GROUP_ROWS) {
        const int64_t offset = (token + t) * rows + row;
        float *out = (float *)operand->out + offset;
        if (operand->added)
            for (int64_t i = 0; i < count; i++) out[i] = operand->added[offset + i] + results[i];
        else if (p->type == TYPE_F32 && count == GROUP_ROWS) /* inlined, since the size is known */
            memcpy(out, results, GROUP_ROWS * sizeof(float));
        else if (p->type == TYPE_F32)
            memcpy(out, results, (size_t)count * sizeof(float));
        else
            for (int64_t i = 0; i < count; i++)
                ((uint16_t *)operand->out)[offset + i] = bf16_of_float(results[i]);
    }
}

#endif

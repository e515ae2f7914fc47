/* One product of activations with several matrices, while it is computed. */
#ifndef MRS_PRODUCT_H
#define MRS_PRODUCT_H

#include "products.h"

/* Activations as the kernels of one format read them, in panels of `width` tokens. */
typedef struct {
    Format format; /* how the weights are multiplied */
    bool is_wide;
    int width;
    int64_t panels, panel_bytes;
    uint8_t *data;
} Laid;

typedef struct {
    const Factor *factors;
    int count;
    Laid laid[MAX_FACTORS];
    const void *x;
    Type type;
    int64_t tokens, columns;
    int64_t task_groups; /* groups of rows that make one task */
    _Atomic bool failed; /* memory is missing */
} Product;

/* Copies the results of one group and some tokens to where they belong, without the padding. */
void store_results(const Product *product, const Factor *factor, const float *results,
                   int64_t token, int64_t tokens, int64_t row);

/* Groups first to end-1 of a matrix times all tokens, by way of tiles; tiles.c. False when memory
 * is missing. */
bool multiply_tiles(const Product *product, const Factor *factor, const Laid *laid, int64_t first,
                    int64_t end);

#endif

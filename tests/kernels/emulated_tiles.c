/* The kernels of AMX for any processor with AVX-512: with tiles that are emulated.
 * Compiled by tests/support/emulated_amx.py. */
#define MRS_TILES "emulated_tiles.h"
#include "isa/amx.c"

/* The kernels of another path with the products by tiles in the place of multiply_wide. */
EXPORT const KernelTable *emulated_kernels(const KernelTable *other) {
    static KernelTable kernels;
    kernels = *other;
    kernels.multiply_wide = multiply_tiled;
    return &kernels;
}

EXPORT int64_t emulated_products(void) { return products_of_tiles; }

/* Threads that have not released their tiles. */
EXPORT int64_t emulated_threads(void) { return threads_with_tiles; }

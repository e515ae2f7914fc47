/* The kernels of AMX for any processor with AVX-512: with tiles that are emulated.
 * Compiled by tests/support/emulated_amx.py. */
#define MRS_TILES "emulated_tiles.h"
#include "isa/amx.c"

static KernelTable base;

static void multiply_narrow(Format format, const uint8_t *group, const void *panel, int width,
                            int64_t columns, float *out) {
    if (format == BF16_PAIRS) multiply_tiled_pairs(group, panel, width, columns, out);
    else base.multiply(format, group, panel, width, columns, out);
}

/* The kernels of another path with the products by tiles in the place of its own. */
EXPORT const KernelTable *emulated_kernels(const KernelTable *other) {
    static KernelTable kernels;
    kernels = base = *other;
    kernels.multiplies_bf16 = kernels.has_tiles = true;
    kernels.multiply = multiply_narrow;
    kernels.multiply_wide = multiply_tiled;
    return &kernels;
}

EXPORT int64_t emulated_products(void) { return products_of_tiles; }

/* Threads that have not released their tiles. */
EXPORT int64_t emulated_threads(void) { return threads_with_tiles; }

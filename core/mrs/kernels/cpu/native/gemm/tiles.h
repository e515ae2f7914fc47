/* Products by AMX's tiles. */
#ifndef MRS_GEMM_TILES_H
#define MRS_GEMM_TILES_H

#include "mrs.h"

/* A compiler that does not know AMX (GCC by the first header, clang by the second) comes with an
 * assembler that does not either. */
#if __has_include(<amxint8intrin.h>) || __has_include(<amxintrin.h>)
#define HAS_TILES 1

/* `multiply_wide` of a KernelTable, for a width of at least 16. */
void multiply_tiled(Format format, const uint8_t *first, const uint8_t *second, const void *panel,
                    int width, int64_t columns, float *totals);

/* `multiply` of a KernelTable for BF16_PAIRS. */
void multiply_tiled_pairs(const uint8_t *group, const void *panel, int width, int64_t columns,
                          float *out);

/* `multiply_registers` of a KernelTable, of codes or pairs of bf16. */
int64_t multiply_tile_registers(Factors factors, int64_t rounds);
#endif

#endif

#include "isa/lanes_avx512.h"
#include "isa/kernel_table.inc.h"
#include "gemm/tiles.h"

DEFINE_KERNEL_TABLE(avx512_kernels, "avx512", false)
DEFINE_KERNEL_TABLE(avx512_bf16_kernels, "avx512_bf16", true)

#ifdef HAS_TILES
static void multiply_narrow(Format format, const uint8_t *group, const void *panel, int width,
                            int64_t columns, float *out) {
    if (format == BF16_PAIRS) multiply_tiled_pairs(group, panel, width, columns, out);
    else multiply(format, group, panel, width, columns, out);
}

static int64_t multiply_any_registers(Factors factors, int64_t rounds) {
    return (factors == FLOATS ? multiply_registers : multiply_tile_registers)(factors, rounds);
}

#undef MULTIPLY_KERNEL
#define MULTIPLY_KERNEL multiply_narrow
#undef HAS_TILED_FLOATS
#define HAS_TILED_FLOATS true
#undef WIDE_KERNEL
#define WIDE_KERNEL multiply_tiled
#undef PEAK_KERNEL
#define PEAK_KERNEL multiply_any_registers
#endif
DEFINE_KERNEL_TABLE(amx_kernels, "amx", true)

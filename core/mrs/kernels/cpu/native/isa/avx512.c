#include "isa/lanes_avx512.h"
#include "isa/kernel_table.inc.h"
#include "gemm/tiles.h"

DEFINE_KERNEL_TABLE(avx512_kernels, "avx512", false)
DEFINE_KERNEL_TABLE(avx512_bf16_kernels, "avx512_bf16", true)

#ifdef HAS_TILES
#undef WIDE_KERNEL
#define WIDE_KERNEL multiply_tiled
#undef PEAK_KERNEL
#define PEAK_KERNEL multiply_tile_registers
#endif
DEFINE_KERNEL_TABLE(amx_kernels, "amx", true)

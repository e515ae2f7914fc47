#include "isa/lanes_avx512.h"
#include "isa/kernel_table.inc.h"

DEFINE_KERNEL_TABLE(avx512_kernels, "avx512", false)
DEFINE_KERNEL_TABLE(avx512_bf16_kernels, "avx512_bf16", true)

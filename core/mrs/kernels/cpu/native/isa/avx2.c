#include "isa/lanes_avx2.h"
#include "isa/kernel_table.inc.h"
#include "isa/avx_vnni.h"

DEFINE_KERNEL_TABLE(avx2_kernels, "avx2", false)

#ifdef HAS_AVX_VNNI
#undef QUANTIZE_KERNEL
#define QUANTIZE_KERNEL quantize_for_vnni
#undef MULTIPLY_KERNEL
#define MULTIPLY_KERNEL multiply_by_vnni
#undef PEAK_KERNEL
#define PEAK_KERNEL multiply_registers_by_vnni
#endif
DEFINE_KERNEL_TABLE(avx_vnni_kernels, "avx_vnni", false)

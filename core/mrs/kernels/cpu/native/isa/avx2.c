#include "isa/lanes_avx2.h"
#include "isa/kernel_table.inc.h"

DEFINE_KERNEL_TABLE(avx2_kernels, "avx2", false)

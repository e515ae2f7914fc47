#include "isa/lanes_neon.h"
#include "isa/kernel_table.inc.h"

DEFINE_KERNEL_TABLE(neon_kernels, "neon", false)

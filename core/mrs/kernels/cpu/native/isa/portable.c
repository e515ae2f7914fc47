#include "isa/lanes_portable.h"
#include "isa/kernel_table.inc.h"

DEFINE_KERNEL_TABLE(portable_kernels, "portable", false)

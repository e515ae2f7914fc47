#include "gemm/tiles.h"

#ifdef HAS_TILES
#include "half.h"
#include "isa/lanes_avx512.h"
#include "gemm/matmul.inc.h"
#include "gemm/tiles.inc.h"
#endif

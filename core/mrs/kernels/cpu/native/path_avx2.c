#include "lanes_avx2.h"
#include "path.h"

DEFINE_PATH(avx2_path, "avx2", false)

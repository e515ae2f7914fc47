#include "lanes_avx512.h"
#include "path.h"

DEFINE_PATH(avx512_path, "avx512")

#include "lanes_avx512.h"
#include "path.h"

DEFINE_PATH(avx512_path, "avx512", false)
DEFINE_PATH(avx512_bf16_path, "avx512_bf16", true)

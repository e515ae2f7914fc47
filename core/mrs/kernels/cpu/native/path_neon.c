#include "lanes_neon.h"
#include "path.h"

DEFINE_PATH(neon_path, "neon", false)

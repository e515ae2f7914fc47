#include "lanes_portable.h"
#include "path.h"

DEFINE_PATH(portable_path, "portable", false)

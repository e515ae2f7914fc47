/* The table of one path's functions. The file that includes it has included its lanes. */
#include "activations.h"
#include "attend.h"
#include "encode.h"
#include "matmul.h"
#include "pack.h"
#include "read.h"

#define DEFINE_PATH(PATH, NAME)                                                                  \
    const Path PATH = {NAME,     pack_group, decode_rows, quantize, multiply, read_bytes,        \
                       normalize, activate,   rotate,      attend,   encode};

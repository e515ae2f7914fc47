/* The table of one path's functions. The file that includes it has included its lanes. */
#include "activations.h"
#include "attend_rows.h"
#include "encode.h"
#include "matmul.h"
#include "pack.h"
#include "read.h"

#if LANES == GROUP_ROWS && defined(HAS_WIDE_LANES)
#include "wide.h"
#define WIDE_FUNCTIONS quantize_wide, level, multiply_wide
#else
#define WIDE_FUNCTIONS NULL, NULL, NULL
#endif

#define DEFINE_PATH(PATH, NAME, MULTIPLIES_BF16)                                                 \
    const Path PATH = {NAME,       MULTIPLIES_BF16, MOST_TOKENS,    pack_group, decode_rows,     \
                       quantize,   multiply,        WIDE_FUNCTIONS, read_bytes, normalize,       \
                       activate,   rotate,          attend,         ROWS,       row_block_bytes, \
                       attend_rows, encode};

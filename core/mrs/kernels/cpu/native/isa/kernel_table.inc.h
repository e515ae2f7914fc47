/* The table of one instruction set's kernels. The file that includes it has included its lanes. */
#include "attention/attend_rows.inc.h"
#include "dense/dense.inc.h"
#include "gemm/activations.inc.h"
#include "gemm/matmul.inc.h"
#include "gemm/pack.inc.h"
#include "isa/peak.inc.h"
#include "isa/read.inc.h"
#include "quantize/encode.inc.h"
#include "attention/attend_codes.inc.h"
#include "recurrent/convolution.inc.h"
#include "recurrent/delta_rule.inc.h"
#include "recurrent/state_space.inc.h"

#ifdef HAS_BROADCAST_QUAD
#include "gemm/wide.inc.h"
#define WIDE_KERNEL multiply_wide
#else
#define WIDE_KERNEL NULL
#endif
#define PEAK_KERNEL multiply_registers
#define QUANTIZE_KERNEL quantize
#define MULTIPLY_KERNEL multiply

#define HAS_TILED_FLOATS false

#define DEFINE_KERNEL_TABLE(TABLE, NAME, MULTIPLIES_BF16)                                        \
    const KernelTable TABLE = {.name = NAME,                                                     \
                               .multiplies_bf16 = MULTIPLIES_BF16,                               \
                               .pack_group = pack_group,                                         \
                               .decode_rows = decode_rows,                                       \
                               .quantize = QUANTIZE_KERNEL,                                      \
                               .narrow_tokens = LANES == 16 ? NARROW_TOKENS : NARROW_TOKENS / 2, \
                               .multiply = MULTIPLY_KERNEL,                                      \
                               .has_tiles = HAS_TILED_FLOATS,                                    \
                               .multiply_wide = WIDE_KERNEL,                                     \
                               .read = read_bytes,                                               \
                               .multiply_registers = PEAK_KERNEL,                                \
                               .normalize = normalize,                                           \
                               .normalize_layer = normalize_layer,                               \
                               .xielu = xielu,                                                   \
                               .activate = activate,                                             \
                               .rotate = rotate,                                                 \
                               .to_f16 = to_f16,                                                 \
                               .attend = attend,                                                 \
                               .index_scores = index_scores,                                     \
                               .rows = ROWS,                                                     \
                               .row_block_bytes = row_block_bytes,                               \
                               .attend_rows = attend_rows,                                       \
                               .code_rows_bytes = code_rows_bytes,                               \
                               .attend_codes = attend_codes,                                     \
                               .write_codes = write_cached_codes,                                \
                               .multiply_dense = multiply_dense,                                 \
                               .delta_rule = delta_rule,                                         \
                               .key_delta_rule = key_delta_rule,                                 \
                               .convolve = convolve,                                             \
                               .state_space = state_space,                                       \
                               .encode = encode};

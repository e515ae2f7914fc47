/* The table of one instruction set's kernels. The file that includes it has included its lanes. */
#include "attention/attend_rows.inc.h"
#include "gemm/activations.inc.h"
#include "gemm/matmul.inc.h"
#include "gemm/pack.inc.h"
#include "isa/read.inc.h"
#include "quantize/encode.inc.h"

#if LANES == GROUP_ROWS && defined(HAS_PROMPT_GEMM)
#include "gemm/prompt_gemm.inc.h"
#define PROMPT_GEMM                                                                              \
    .quantize_prompt_panel = quantize_prompt_panel, .requantize = requantize,                    \
    .multiply_tile = multiply_tile,
#else
#define PROMPT_GEMM
#endif

#define DEFINE_KERNEL_TABLE(TABLE, NAME, MULTIPLIES_BF16)                                        \
    const KernelTable TABLE = {.name = NAME,                                                     \
                               .multiplies_bf16 = MULTIPLIES_BF16,                               \
                               .max_tokens = ISA_MAX_TOKENS,                                     \
                               .pack_group = pack_group,                                         \
                               .decode_rows = decode_rows,                                       \
                               .quantize = quantize,                                             \
                               .multiply = multiply,                                             \
                               PROMPT_GEMM                                                       \
                               .read = read_bytes,                                               \
                               .normalize = normalize,                                           \
                               .activate = activate,                                             \
                               .rotate = rotate,                                                 \
                               .attend = attend,                                                 \
                               .rows = ROWS,                                                     \
                               .row_block_bytes = row_block_bytes,                               \
                               .attend_rows = attend_rows,                                       \
                               .encode = encode};

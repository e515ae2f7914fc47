/* The storage of packed matrices, and the table of kernels of an instruction set. Functions whose
 * names begin with mrs_ are exported. */
#ifndef MRS_H
#define MRS_H

#include "base.h"

/* Packed matrices have rows in groups of 16 and columns in units of 32. */
#define GROUP_ROWS 16
#define UNIT_COLUMNS 32
/* The most tokens of a panel: rows of activations that share one read of the weights. */
#define NARROW_TOKENS 16
#define WIDE_TOKENS 128
/* Those of a tile; the width of wide panels for tiles of floats is a multiple. */
#define TILE_TOKENS 16

/* The order is that of `PACKED_FORMATS` in core/mrs/kernels/packed_layout.py. */
typedef enum {
    Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, MXFP4, INT2_32, INT2_64, INT2_128,
    INT3_32, INT3_64, INT3_128, INT4_32, INT4_64, INT4_128, INT8_32, INT8_64, INT8_128, F16, BF16,
    F32, FP8_32, FP8_64, FP8_128, NF4_32, NF4_64, NF4_128, FORMAT_COUNT,
    BF16_PAIRS = FORMAT_COUNT, /* BF16 weights times activations rounded to bf16 */
    BF16_SUBNORMAL /* the same in float arithmetic, since bf16 units treat subnormals as 0 */
} Format;

/* Types of activations and results. */
typedef enum { TYPE_F32, TYPE_BF16, TYPE_F16 } Type;

/* The order is that of `ACTIVATIONS` in core/mrs/kernels/native_limits.py. */
typedef enum { SILU, GELU_TANH, SIGMOID, QUICK_GELU, SOFTPLUS, GELU, RELU, RELU2 } Activation;
typedef struct Rotation Rotation;               /* elementwise.h */
typedef struct KVCache KVCache;                 /* attention/attention.h */
typedef struct CacheTensor CacheTensor;         /* attention/attention.h */
typedef struct SequenceQueries SequenceQueries; /* attention/attention.h */
typedef struct Query Query;                     /* attention/attention.h */
typedef struct DenseProduct DenseProduct;       /* dense/dense.h */
typedef struct DeltaRule DeltaRule;             /* recurrent/delta_rule.h */
typedef struct Convolution Convolution;         /* recurrent/convolution.h */
typedef struct StateSpace StateSpace;           /* recurrent/state_space.h */

/* How much the error of each column counts. */
typedef struct {
    const float *values; /* NULL if it is not known */
    int64_t columns;
} Importance;

/* What products are made of: 8-bit codes, floats, or pairs of bf16. */
typedef enum { CODES, FLOATS, BF16S } Factors;

/* The kernels that are compiled for one instruction set. */
typedef struct {
    const char *name;
    bool multiplies_bf16; /* the processor has units for it */
    void (*pack_group)(Format format, const uint8_t *blocks, int64_t row_bytes, int rows,
                       int64_t columns, uint8_t *packed);
    void (*decode_rows)(Format format, const uint8_t *group, int first, int count,
                        int64_t columns, Type type, void *out);
    void (*quantize)(Format format, const float *const rows[], int count, int first, int width,
                     int64_t columns, void *panel);
    int narrow_tokens; /* the most tokens of a panel for `multiply`, NARROW_TOKENS at most */
    void (*multiply)(Format format, const uint8_t *group, const void *panel, int width,
                     int64_t columns, float *out);
    bool has_tiles; /* multiply_wide has float formats but F32, too */
    /* Adds two groups of codes times up to WIDE_TOKENS tokens; NULL without 32 registers. */
    void (*multiply_wide)(Format format, const uint8_t *first, const uint8_t *second,
                          const void *panel, int width, int64_t columns, float *totals);
    void (*read)(const uint8_t *bytes, int64_t size);
    int64_t (*multiply_registers)(Factors factors, int64_t rounds);
    void (*normalize)(const float *x, const float *weight, float eps, int64_t size, float *out);
    void (*normalize_layer)(const float *x, const float *weight, const float *bias, float eps,
                            int64_t size, float *out);
    void (*xielu)(const float parameters[4], float *x, int64_t size);
    void (*activate)(Activation activation, float *gate, const float *up, int64_t size);
    void (*rotate)(const Rotation *rotation, const float *x, const float *cos, const float *sin,
                   float *out);
    void (*to_f16)(const float *x, int64_t count, uint16_t *out);
    void (*attend)(const Query *query, int64_t head, int64_t heads, float *workspace);
    void (*index_scores)(const Query *query, const float *weights, float *scores,
                         float *workspace);
    int64_t rows; /* of a call of attend_rows, at most */
    int64_t (*row_block_bytes)(const KVCache *cache);
    void (*attend_rows)(const SequenceQueries *queries, int64_t kv_head, int64_t first,
                        int64_t rows, void *workspace);
    int64_t (*code_rows_bytes)(const KVCache *cache);
    void (*attend_codes)(const SequenceQueries *queries, int64_t kv_head, int64_t first,
                         int64_t rows, void *workspace);
    void (*write_codes)(const CacheTensor *cached, bool are_values, int64_t inside, const float *x,
                        uint8_t *plane, uint8_t *rests);
    void (*multiply_dense)(const DenseProduct *product, int64_t head, int64_t row, int64_t rows);
    void (*delta_rule)(const DeltaRule *rule, int64_t head, int64_t column, float *workspace);
    void (*key_delta_rule)(const DeltaRule *rule, int64_t head, int64_t column, float *workspace);
    void (*convolve)(const Convolution *convolution, int64_t first, int64_t count);
    void (*state_space)(const StateSpace *space, int64_t head, int64_t first, int64_t rows);
    void (*encode)(Format format, const void *x, Type type, int64_t blocks,
                   const Importance *importance, int64_t first, uint8_t *out);
} KernelTable;

extern const KernelTable portable_kernels;
#if defined(__x86_64__)
extern const KernelTable avx2_kernels, avx_vnni_kernels, avx512_kernels, avx512_bf16_kernels,
    amx_kernels;
#elif defined(__aarch64__)
extern const KernelTable neon_kernels;
#endif

/* The storage of each format. */
static inline bool is_float(Format format) { return format >= F16; }

/* Bytes of an unquantized weight, and of a group's column of them. */
static inline int float_bytes(Format format) { return format == F32 ? 4 : 2; }
static inline int float_column_bytes(Format format) { return GROUP_ROWS * float_bytes(format); }

static inline bool is_grouped_int(Format format) { return format >= INT2_32 && format < F16; }
/* FP8 and NF4: codes of floats. */
static inline bool is_grouped_float(Format format) {
    return format >= FP8_32 && format < FORMAT_COUNT;
}

/* Whether kernels get the units of a block as an argument: 1, 2 or 4. */
static inline bool is_grouped(Format format) {
    return is_grouped_int(format) || is_grouped_float(format);
}

/* The place of a grouped format among the three with the same codes. */
static inline int group_step(Format format) {
    return is_grouped(format) ? (int)(format - (is_float(format) ? FP8_32 : INT2_32)) % 3 : 0;
}

/* The format whose kernels multiply this one: for grouped formats, that with the same codes and
 * blocks of one unit. */
static inline Format kernel_format(Format format) { return (Format)(format - group_step(format)); }

static inline int block_units(Format format) {
    return format >= Q2_K && format <= Q6_K ? 8 : 1 << group_step(format);
}

static inline int block_bytes(Format format) {
    static const int bytes[] = {18, 20, 22, 24, 34, 84, 110, 144, 176, 210, 17, 16, 24, 40, 20, 32,
                                56, 24, 40, 72, 40, 72, 136, 64, 64, 128, 36, 68, 132, 20, 36, 68,
                                64, 64};
    return bytes[format];
}

/* Columns of a packed row: rows of the float formats are padded with zeros to whole units. */
static inline int64_t padded_columns(int64_t columns) {
    return (columns + UNIT_COLUMNS - 1) / UNIT_COLUMNS * UNIT_COLUMNS;
}

static inline int64_t group_bytes(Format format, int64_t columns) {
    return padded_columns(columns) / UNIT_COLUMNS / block_units(format) * block_bytes(format) *
           GROUP_ROWS;
}

/* Bytes of one unit of activations for `width` tokens; see gemm/activations.inc.h. */
static inline int64_t panel_unit_bytes(Format format, int width) {
    int bytes = format == BF16_PAIRS ? 2 * UNIT_COLUMNS
                : is_float(format)   ? 4 * UNIT_COLUMNS
                                     : UNIT_COLUMNS + 12;
    return (int64_t)width * bytes;
}

#endif

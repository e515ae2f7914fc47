/* Functions on packed matrices for Python, which checks all sizes and pointers. */
#include "bounds.h"
#include "gemm/products.h"
#include "runtime/threads.h"

#include <string.h>

/* The kernels of a CPU path by name, or NULL. The caller must know that the processor can run
 * them. */
EXPORT const KernelTable *mrs_path(const char *name) {
    static const KernelTable *const tables[] = {
#if defined(__x86_64__)
        &amx_kernels, &avx512_bf16_kernels, &avx512_kernels, &avx_vnni_kernels,
        &avx2_kernels,
#elif defined(__aarch64__)
        &neon_kernels,
#endif
        &portable_kernels};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (strcmp(tables[i]->name, name) == 0) return tables[i];
    return NULL;
}

/* Bytes of one row in a file. In a quantized format the columns must be whole blocks. */
EXPORT int64_t mrs_row_bytes(int format, int64_t columns) {
    if (format >= F16 && format <= F32) return float_bytes((Format)format) * columns;
    return columns / (block_units((Format)format) * UNIT_COLUMNS) * block_bytes((Format)format);
}

EXPORT int64_t mrs_packed_bytes(int format, int64_t rows, int64_t columns) {
    return divide_up(rows, GROUP_ROWS) * group_bytes((Format)format, columns);
}

/* Sets `subnormal` of each group of a BF16 matrix. */
static void mark_task(void *data, int64_t first, int64_t end) {
    const Matrix *m = data;
    const int64_t bytes = group_bytes(BF16, m->columns);
    for (int64_t group = first; group < end; group++) {
        const uint16_t *weights = (const uint16_t *)(m->packed + group * bytes);
        unsigned found = 0;
        for (int64_t i = 0; i < bytes / 2; i++) {
            uint16_t magnitude = (uint16_t)(weights[i] << 1);
            found |= (uint16_t)(magnitude - 1) < 0xff; /* exponent 0, but not zero */
        }
        m->subnormal[group] = found != 0;
    }
}

EXPORT void mrs_mark_subnormal(const Matrix *matrix, int threads) {
    run_tasks(threads, divide_up(matrix->rows, GROUP_ROWS), mark_task, (void *)matrix);
}

typedef struct {
    const Matrix *matrix;
    const uint8_t *blocks;
    int64_t row_bytes, first_row, rows;
} PackArgs;

static void pack_task(void *data, int64_t first, int64_t end) {
    const PackArgs *p = data;
    const Matrix *m = p->matrix;
    for (int64_t index = first; index < end; index++) {
        int64_t row = index * GROUP_ROWS, group = p->first_row / GROUP_ROWS + index;
        m->kernels->pack_group((Format)m->format, p->blocks + row * p->row_bytes, p->row_bytes,
                               (int)at_most(GROUP_ROWS, p->rows - row), m->columns,
                               m->packed + group * group_bytes((Format)m->format, m->columns));
        if (m->subnormal) mark_task((void *)m, group, group + 1);
    }
}

/* Packs `rows` rows of a file's blocks as the rows from first_row, a multiple of 16, on. */
EXPORT void mrs_pack(const Matrix *matrix, const uint8_t *blocks, int64_t row_bytes,
                     int64_t first_row, int64_t rows, int threads) {
    PackArgs args = {matrix, blocks, row_bytes, first_row, rows};
    run_tasks(threads, divide_up(rows, GROUP_ROWS), pack_task, &args);
}

typedef struct {
    const Matrix *matrix;
    const int64_t *ids;
    int64_t count;
    Type type;
    uint8_t *out;
} DecodeArgs;

static void decode_task(void *data, int64_t first, int64_t end) {
    const DecodeArgs *d = data;
    const Matrix *m = d->matrix;
    const int64_t step = d->ids ? 1 : GROUP_ROWS;
    const int64_t row_bytes = m->columns * (d->type == TYPE_F32 ? 4 : 2);
    for (int64_t index = first; index < end; index++) {
        int64_t row = d->ids ? d->ids[index] : index * GROUP_ROWS;
        const uint8_t *group =
            m->packed + row / GROUP_ROWS * group_bytes((Format)m->format, m->columns);
        m->kernels->decode_rows((Format)m->format, group, (int)(row % GROUP_ROWS),
                                (int)at_most(step, d->count - index * step), m->columns, d->type,
                                d->out + index * step * row_bytes);
    }
}

void decode_matrix(const Matrix *matrix, const int64_t *ids, int64_t count, Type type, void *out,
                   int threads) {
    DecodeArgs args = {matrix, ids, count, type, out};
    run_tasks(threads, ids ? count : divide_up(count, GROUP_ROWS), decode_task, &args);
}

/* Writes the values of `count` rows to out (count, columns), as exact floats or rounded to bf16:
 * the rows of the indices `ids`, or if that is NULL the first rows. */
EXPORT Outcome mrs_decode(const Matrix *matrix, const int64_t *ids, int64_t count, int type,
                          void *out, int threads) {
    const int64_t last = count - 1;
    Outcome outcome = check_all(BAD_ROW, ids ? ids : &last, ids ? count : count > 0, matrix->rows);
    if (!outcome.code) decode_matrix(matrix, ids, count, (Type)type, out, threads);
    return outcome;
}

typedef struct {
    const KernelTable *kernels;
    const uint8_t *bytes;
    int64_t size;
} ReadArgs;

#define READ_BYTES (16 << 10)

static void read_task(void *data, int64_t first, int64_t end) {
    const ReadArgs *r = data;
    int64_t start = first * READ_BYTES;
    r->kernels->read(r->bytes + start, at_most(end * READ_BYTES, r->size) - start);
}

/* Reads memory once and ignores the values, to measure bandwidth. */
EXPORT void mrs_read(const KernelTable *kernels, const uint8_t *bytes, int64_t size, int threads) {
    ReadArgs args = {kernels, bytes, size};
    run_tasks(threads, divide_up(size, READ_BYTES), read_task, &args);
}

typedef struct {
    const KernelTable *kernels;
    Factors factors;
    _Atomic int64_t products;
} PeakArgs;

#define PEAK_ROUNDS 1000 /* of a task */

static void peak_task(void *data, int64_t first, int64_t end) {
    PeakArgs *p = data;
    for (; first < end; first++)
        p->products += p->kernels->multiply_registers(p->factors, PEAK_ROUNDS);
}

/* Multiplies registers in `tasks` tasks, to measure the peak of arithmetic; returns how many
 * products of values were computed. */
EXPORT int64_t mrs_multiply_registers(const KernelTable *kernels, int factors, int64_t tasks,
                                      int threads) {
    PeakArgs args = {.kernels = kernels, .factors = (Factors)factors};
    run_tasks(threads, tasks, peak_task, &args);
    return args.products;
}

typedef struct {
    const KernelTable *kernels;
    Format format;
    Type type;
    const uint8_t *x;
    int64_t blocks;
    Importance importance;
    uint8_t *out;
} EncodeArgs;

#define ENCODE_BLOCKS 32 /* of a task */

static void encode_task(void *data, int64_t first, int64_t end) {
    const EncodeArgs *e = data;
    int64_t block = first * ENCODE_BLOCKS, last = at_most(end * ENCODE_BLOCKS, e->blocks);
    int64_t value_bytes = e->type == TYPE_F32 ? 4 : 2;
    int64_t values = UNIT_COLUMNS * block_units(e->format);
    e->kernels->encode(e->format, e->x + block * values * value_bytes, e->type, last - block,
                       &e->importance, block, e->out + block * block_bytes(e->format));
}

/* Quantizes the values x, of `type`, to `blocks` blocks. They are whole rows of `columns`, whose
 * errors count as `importance` (columns) says, unless that is NULL. */
EXPORT void mrs_encode(const KernelTable *kernels, int format, const void *x, int type,
                       int64_t blocks, const float *importance, int64_t columns, uint8_t *out,
                       int threads) {
    EncodeArgs args = {kernels, (Format)format, (Type)type, x, blocks, {importance, columns}, out};
    run_tasks(threads, divide_up(blocks, ENCODE_BLOCKS), encode_task, &args);
}

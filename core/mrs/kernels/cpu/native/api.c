/* What Python calls. Sizes and pointers are checked there. */
#include "products.h"
#include "threads.h"

#include <string.h>

/* The path of this name, or NULL. Whether the processor can run it is the caller's business. */
EXPORT const Path *mrs_path(const char *name) {
    static const Path *const paths[] = {
#if defined(__x86_64__)
        &avx512_bf16_path, &avx512_path, &avx2_path,
#elif defined(__aarch64__)
        &neon_path,
#endif
        &portable_path};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (strcmp(paths[i]->name, name) == 0) return paths[i];
    return NULL;
}

/* Bytes of one row in a file; the columns of a quantized format are whole blocks. */
EXPORT int64_t mrs_row_bytes(int format, int64_t columns) {
    if (is_float((Format)format)) return 2 * columns;
    return columns / (block_units((Format)format) * UNIT_COLUMNS) * block_bytes((Format)format);
}

EXPORT int64_t mrs_packed_bytes(int format, int64_t rows, int64_t columns) {
    return divide_up(rows, GROUP_ROWS) * group_bytes((Format)format, columns);
}

/* Marks the groups of a BF16 matrix that have subnormal weights. */
static void mark_task(void *data, int64_t first, int64_t end) {
    const Matrix *m = data;
    const int64_t bytes = group_bytes(BF16, m->columns);
    for (int64_t group = first; group < end; group++) {
        const uint16_t *weights = (const uint16_t *)(m->packed + group * bytes);
        unsigned found = 0;
        for (int64_t i = 0; i < bytes / 2; i++) {
            uint16_t magnitude = (uint16_t)(weights[i] << 1);
            found |= (uint16_t)(magnitude - 1) < 0xff; /* no exponent, and not 0 */
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
} Packing;

static void pack_task(void *data, int64_t first, int64_t end) {
    const Packing *p = data;
    const Matrix *m = p->matrix;
    for (int64_t index = first; index < end; index++) {
        int64_t row = index * GROUP_ROWS, group = p->first_row / GROUP_ROWS + index;
        m->path->pack_group((Format)m->format, p->blocks + row * p->row_bytes, p->row_bytes,
                            (int)at_most(GROUP_ROWS, p->rows - row), m->columns,
                            m->packed + group * group_bytes((Format)m->format, m->columns));
        if (m->subnormal) mark_task((void *)m, group, group + 1);
    }
}

/* Packs `rows` rows of a file's blocks as rows first_row (a multiple of 16) and after. */
EXPORT void mrs_pack(const Matrix *matrix, const uint8_t *blocks, int64_t row_bytes,
                     int64_t first_row, int64_t rows, int threads) {
    Packing packing = {matrix, blocks, row_bytes, first_row, rows};
    run_tasks(threads, divide_up(rows, GROUP_ROWS), pack_task, &packing);
}

typedef struct {
    const Matrix *matrix;
    const int64_t *ids;
    int64_t first, count;
    Type type;
    uint8_t *out;
} Decoding;

static void decode_task(void *data, int64_t first, int64_t end) {
    const Decoding *d = data;
    const Matrix *m = d->matrix;
    const int64_t step = d->ids ? 1 : GROUP_ROWS;
    const int64_t row_bytes = m->columns * (d->type == TYPE_F32 ? 4 : 2);
    for (int64_t index = first; index < end; index++) {
        int64_t row = d->ids ? d->ids[index] : d->first + index * GROUP_ROWS;
        const uint8_t *group =
            m->packed + row / GROUP_ROWS * group_bytes((Format)m->format, m->columns);
        m->path->decode_rows((Format)m->format, group, (int)(row % GROUP_ROWS),
                             (int)at_most(step, d->count - index * step), m->columns, d->type,
                             d->out + index * step * row_bytes);
    }
}

/* The values of `count` rows, as floats exactly or rounded to bf16: those that `ids` numbers, or
 * where it is NULL those from `first`, a multiple of 16, on. Returns false, with nothing done, where
 * an id is none of a row. */
EXPORT bool mrs_decode(const Matrix *matrix, const int64_t *ids, int64_t first, int64_t count,
                       int type, void *out, int threads) {
    for (int64_t i = 0; ids && i < count; i++)
        if (ids[i] < 0 || ids[i] >= matrix->rows) return false;
    Decoding decoding = {matrix, ids, first, count, (Type)type, out};
    run_tasks(threads, ids ? count : divide_up(count, GROUP_ROWS), decode_task, &decoding);
    return true;
}

typedef struct {
    const Path *path;
    const uint8_t *bytes;
    int64_t size;
} Reading;

#define READ_BYTES (16 << 10)

static void read_task(void *data, int64_t first, int64_t end) {
    const Reading *r = data;
    int64_t start = first * READ_BYTES;
    r->path->read(r->bytes + start, at_most(end * READ_BYTES, r->size) - start);
}

/* Reads memory once and does nothing with it. */
EXPORT void mrs_read(const Path *path, const uint8_t *bytes, int64_t size, int threads) {
    Reading reading = {path, bytes, size};
    run_tasks(threads, divide_up(size, READ_BYTES), read_task, &reading);
}

typedef struct {
    const Path *path;
    Format format;
    Type type;
    const uint8_t *x;
    int64_t blocks;
    uint8_t *out;
} Encoding;

#define ENCODE_BLOCKS 32 /* blocks that are handed out together */

static void encode_task(void *data, int64_t first, int64_t end) {
    const Encoding *e = data;
    int64_t block = first * ENCODE_BLOCKS, last = at_most(end * ENCODE_BLOCKS, e->blocks);
    int64_t number_bytes = e->type == TYPE_F32 ? 4 : 2;
    int64_t numbers = UNIT_COLUMNS * block_units(e->format);
    e->path->encode(e->format, e->x + block * numbers * number_bytes, e->type, last - block,
                    e->out + block * block_bytes(e->format));
}

/* Quantizes the numbers, of `type`, of `blocks` blocks. */
EXPORT void mrs_encode(const Path *path, int format, const void *x, int type, int64_t blocks,
                       uint8_t *out, int threads) {
    Encoding encoding = {path, (Format)format, (Type)type, x, blocks, out};
    run_tasks(threads, divide_up(blocks, ENCODE_BLOCKS), encode_task, &encoding);
}

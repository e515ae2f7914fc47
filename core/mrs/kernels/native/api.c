/* What Python calls. Sizes and pointers are checked there. */
#include <stdlib.h>
#include <string.h>

#include "half.h"
#include "threads.h"

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

typedef struct {
    const Path *path;
    int64_t format, rows, columns;
    uint8_t *packed;
} Matrix;

static int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

#if defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>
static bool has_dot_products(void) { return getauxval(AT_HWCAP) >> 20 & 1; } /* ASIMDDP */
#else
static bool has_dot_products(void) { return true; } /* every Apple processor since 2018 */
#endif
#endif

/* The paths that this processor can run, best first; NULL beyond the last. */
EXPORT const Path *mrs_path(int index) {
    const Path *found[4];
    int count = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni"))
        found[count++] = &avx512_path;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c"))
        found[count++] = &avx2_path;
#elif defined(__aarch64__)
    if (has_dot_products()) found[count++] = &neon_path;
#endif
    found[count++] = &portable_path;
    return index < count ? found[index] : NULL;
}

/* Bytes of one row in a file; the columns of a quantized format are whole blocks. */
EXPORT int64_t mrs_row_bytes(int format, int64_t columns) {
    if (is_float((Format)format)) return 2 * columns;
    return columns / (block_units((Format)format) * UNIT_COLUMNS) * block_bytes((Format)format);
}

static bool multiplies_bf16(const Path *path) {
#if defined(__x86_64__)
    return path == &avx512_path && __builtin_cpu_supports("avx512bf16");
#else
    return path == NULL;
#endif
}

EXPORT int64_t mrs_packed_bytes(int format, int64_t rows, int64_t columns) {
    return divide_up(rows, GROUP_ROWS) * group_bytes((Format)format, columns);
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
 * where it is NULL those from `first`, a multiple of 16, on. */
EXPORT void mrs_decode(const Matrix *matrix, const int64_t *ids, int64_t first, int64_t count,
                       int type, void *out, int threads) {
    Decoding decoding = {matrix, ids, first, count, (Type)type, out};
    run_tasks(threads, ids ? count : divide_up(count, GROUP_ROWS), decode_task, &decoding);
}

typedef struct {
    const Matrix *matrix;
    const void *x;
    void *out;
    Type type;
    Format format;           /* how the weights are multiplied */
    int width;               /* tokens in a panel */
    int64_t tokens, panels;
    int64_t panel_bytes;
    uint8_t *panel;
} Product;

static void quantize_panel(const Product *p, int64_t index) {
    int64_t columns = p->matrix->columns, first = index * p->width;
    int tokens = (int)at_most(p->width, p->tokens - first);
    const float *rows[MAX_TOKENS];
    float *converted = NULL;
    if (p->type == TYPE_BF16) {
        const uint16_t *x = (const uint16_t *)p->x + first * columns;
        converted = malloc((size_t)(tokens * columns) * sizeof(float));
        for (int64_t i = 0; i < tokens * columns; i++) converted[i] = float_of_bf16(x[i]);
    }
    const float *x = converted ? converted : (const float *)p->x + first * columns;
    for (int t = 0; t < tokens; t++) rows[t] = x + t * columns;
    p->matrix->path->quantize(p->format, rows, tokens, p->width, columns,
                              p->panel + index * p->panel_bytes);
    free(converted);
}

static void quantize_task(void *data, int64_t first, int64_t end) {
    for (int64_t index = first; index < end; index++) quantize_panel(data, index);
}

/* Copies the results of one group and panel to where they belong, leaving out the padding. */
static void store_results(const Product *p, const float *results, int64_t token, int64_t row) {
    int64_t rows = p->matrix->rows, tokens = at_most(p->width, p->tokens - token);
    int64_t count = at_most(GROUP_ROWS, rows - row);
    for (int64_t t = 0; t < tokens; t++, results += GROUP_ROWS) {
        int64_t place = (token + t) * rows + row;
        if (p->type == TYPE_F32)
            memcpy((float *)p->out + place, results, (size_t)count * sizeof(float));
        else
            for (int64_t i = 0; i < count; i++)
                ((uint16_t *)p->out)[place + i] = bf16_of_float(results[i]);
    }
}

/* Groups first to end-1 for all tokens; the weights stay in the second-level cache meanwhile. */
static void multiply_groups(const Product *p, int64_t first, int64_t end) {
    const Matrix *m = p->matrix;
    const int64_t bytes = group_bytes((Format)m->format, m->columns);
    float results[MAX_TOKENS * GROUP_ROWS];
    for (int64_t panel = 0; panel < p->panels; panel++)
        for (int64_t group = first; group < end; group++) {
            m->path->multiply(p->format, m->packed + group * bytes,
                              p->panel + panel * p->panel_bytes, p->width, m->columns, results);
            store_results(p, results, panel * p->width, group * GROUP_ROWS);
        }
}

#define CACHED_BYTES (256 << 10)

static void multiply_task(void *data, int64_t first, int64_t end) {
    const Product *p = data;
    int64_t bytes = group_bytes((Format)p->matrix->format, p->matrix->columns);
    int64_t step = CACHED_BYTES / bytes > 1 ? CACHED_BYTES / bytes : 1;
    for (; first < end; first += step) multiply_groups(p, first, at_most(first + step, end));
}

/* out (tokens, rows) = x (tokens, columns) times the transposed matrix; both of `type`.
 * Returns false when memory for the activations is missing. */
EXPORT bool mrs_matmul(const Matrix *matrix, const void *x, int type, int64_t tokens, void *out,
                       int threads) {
    Product p = {.matrix = matrix, .x = x, .out = out, .type = (Type)type, .tokens = tokens};
    p.width = tokens > 4 ? 8 : tokens > 2 ? 4 : (int)tokens;
    p.panels = divide_up(tokens, p.width);
    p.format = (Format)matrix->format;
    if (p.format == BF16 && p.width == MAX_TOKENS && multiplies_bf16(matrix->path))
        p.format = BF16_PAIRS;
    p.panel_bytes = padded_columns(matrix->columns) / UNIT_COLUMNS *
                    panel_unit_bytes(p.format, p.width);
    p.panel_bytes = divide_up(p.panel_bytes, 64) * 64;
    p.panel = aligned_alloc(64, (size_t)(p.panels * p.panel_bytes));
    if (!p.panel) return false;
    run_tasks(p.panels < 4 ? 1 : threads, p.panels, quantize_task, &p);
    run_tasks(threads, divide_up(matrix->rows, GROUP_ROWS), multiply_task, &p);
    free(p.panel);
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

/* Attention over quantized keys and values; included once per instruction set.
 *
 * The keys or values of the tokens of a block, for one key head, are a plane. A token's row of them
 * has the codes and scales of Q8_0 or Q4_0 (32 values share a scale); the plane has the codes of all
 * rows and then the scales of all, (units, tokens). Codes are in groups of four bytes that a lane
 * multiplies at once: of keys, four bytes of a token's row, (row bytes / 4, tokens, 4); of values,
 * the same byte of four tokens, (tokens / 4, row bytes, 4).
 *
 * Queries and weights become two codes of 8 bits each: x is about step * (254 * high + low), with an
 * error of a 64,000th of the largest possible x. Sums of codes are exact, so that a row's result depends on
 * nothing but its query and the cache: one token and many are computed by the same code.
 *
 *   score   = the sum over units of 32 values of step * (254 * high sum + low sum) * scale
 *   weights as in attention/arithmetic.inc.h; for each unit they are multiplied by the scales of
 *   the keys' values before they become codes
 *
 * Rows are rotated by a Hadamard matrix before they are quantized, so that no few values determine a
 * scale: queries as well, which leaves scores as they are, and the sums of values back again.
 *
 * The rests of a block (see KVCache) are a plane of Q8_0, too: what scores and sums have of them is
 * added by the same code. Which rows read them depends on positions alone.
 */
#include <math.h>


#define CODE_UNIT 32 /* values that share a scale */
#define GROUP 4      /* rows whose sums are in registers */
#define LOW_CODES 254.0f

typedef struct {
    const SequenceQueries *queries;
    int64_t rows;
    float largest[CODE_ROWS], total[CODE_ROWS], factor[CODE_ROWS];
    float weight_bound[CODE_ROWS], weight_step[CODE_ROWS];
    int64_t own[CODE_ROWS], first[CODE_ROWS], last[CODE_ROWS]; /* positions: its own, and of keys */
    int32_t weight_sums[CODE_ROWS][2]; /* of codes: high, low */
    float scores[CODE_ROWS][STEP_KEYS];
    int8_t weight_codes[CODE_ROWS][2][STEP_KEYS]; /* high, low */
    float *out, *steps;    /* (CODE_ROWS, value dim), (units, CODE_ROWS) */
    int32_t *sums;         /* (units, CODE_ROWS, 2): of codes, high and low */
    int8_t *codes;         /* (units, CODE_ROWS, 2, CODE_UNIT): high, low */
} CodeRows;

INLINE int cached_bits(const CacheTensor *cached) { return cached->type == CACHE_Q8_0 ? 8 : 4; }

/* What take_codes adds to codes. */
INLINE int code_offset_of(const int bits) { return bits == 8 ? BYTE_OFFSET : 8; }

static int64_t code_rows_bytes(const KVCache *cache) {
    const int64_t dim = cache->keys.dim, units = dim / CODE_UNIT;
    return (int64_t)sizeof(CodeRows) + CODE_ROWS * (4 * cache->values.dim + 12 * units + 2 * dim);
}

/* Multiplies parts of x (dim) by a Hadamard matrix, which is its own inverse: the largest power of
 * two that divides `dim` is their size. */
static int64_t rotated_part(int64_t dim) { return at_most(dim & -dim, MOST_ROTATED); }

static void rotate_part(float *x, int64_t size) {
    for (int64_t half = 1; half < size; half *= 2)
        for (int64_t i = 0; i < size; i += 2 * half)
#pragma omp simd
            for (int64_t j = i; j < i + half; j++) {
                const float a = x[j], b = x[j + half];
                x[j] = a + b;
                x[j + half] = a - b;
            }
    const float norm = 1.0f / sqrtf((float)size);
#pragma omp simd
    for (int64_t i = 0; i < size; i++) x[i] *= norm;
}

/* The same part of a row that is to be quantized, from value `first` on. */
INLINE int64_t take_part(int64_t dim, const float *x, int64_t first, float scale,
                         float part[MOST_ROTATED]) {
    const int64_t size = rotated_part(dim);
    for (int64_t i = 0; i < size; i++) part[i] = x[first + i] * scale;
    rotate_part(part, size);
    return size;
}

/* Writes the codes of `bits` bits of one unit, and their scale, of the token at place `inside`. */
static void put_unit(const CacheTensor *cached, const int bits, bool are_values, int64_t inside,
                     int64_t unit, const uint8_t block[2 + CODE_UNIT], uint8_t *plane) {
    const int bytes = bits * CODE_UNIT / 8;
    const int64_t row_bytes = cached->dim * bits / 8;
    memcpy(plane + row_bytes * STEP_KEYS + (unit * STEP_KEYS + inside) * 2, block, 2);
    for (int j = 0; j < bytes; j++) {
        const int64_t column = unit * bytes + j;
        const int64_t place = are_values ? (inside / 4 * row_bytes + column) * 4 + inside % 4
                                         : (column / 4 * STEP_KEYS + inside) * 4 + column % 4;
        plane[place] = block[2 + j];
    }
}

/* x - what a block of codes means, times REST_FACTOR. */
static void take_rests(const int bits, const uint8_t block[2 + CODE_UNIT], const float *x,
                       float rests[CODE_UNIT]) {
    uint16_t half;
    memcpy(&half, block, 2);
    const float scale = float_of_half(half);
    for (int i = 0; i < CODE_UNIT; i++) {
        const int low = block[2 + i % (CODE_UNIT / 2)] >> (i < CODE_UNIT / 2 ? 0 : 4) & 15;
        const int code = bits == 8 ? (int8_t)block[2 + i] : low - 8;
        rests[i] = (x[i] - scale * (float)code) * REST_FACTOR;
    }
}

/* Writes the row x of the token at place `inside` of a plane, and its rests. */
static void write_cached_codes(const CacheTensor *cached, bool are_values, int64_t inside,
                               const float *x, uint8_t *plane, uint8_t *rest_plane) {
    const int bits = cached_bits(cached);
    float part[MOST_ROTATED], rests[CODE_UNIT];
    for (int64_t first = 0, size; first < cached->dim; first += size) {
        size = take_part(cached->dim, x, first, 1, part);
        for (int64_t i = 0; i < size; i += CODE_UNIT) {
            const int64_t unit = (first + i) / CODE_UNIT;
            uint8_t block[2 + CODE_UNIT];
            encode_simple_block(bits == 8 ? Q8_0 : Q4_0, part + i, block);
            put_unit(cached, bits, are_values, inside, unit, block, plane);
            take_rests(bits, block, part + i, rests);
            encode_simple_block(Q8_0, rests, block);
            put_unit(cached, 8, are_values, inside, unit, block, rest_plane);
        }
    }
}

/* Two codes of each of `count` values whose magnitude is 127 at most, and the sums of the codes. */
INLINE void make_two_codes(const float *x, const int count, int8_t *high, int8_t *low,
                           int32_t sums[2]) {
    const float rounder = 12582912.0f; /* 1.5 * 2^23: the sum's low bits are the nearest integer */
    int32_t high_sum = 0, low_sum = 0;
#pragma omp simd reduction(+ : high_sum, low_sum)
    for (int i = 0; i < count; i++) {
        const float whole = x[i] + rounder;
        const float rest = (x[i] - (whole - rounder)) * LOW_CODES + rounder;
        const int32_t one = (int32_t)(bits_of_float(whole) - bits_of_float(rounder));
        const int32_t other = (int32_t)(bits_of_float(rest) - bits_of_float(rounder));
        high_sum += one;
        low_sum += other;
        high[i] = (int8_t)one;
        low[i] = (int8_t)other;
    }
    sums[0] = high_sum;
    sums[1] = low_sum;
}

/* What makes a value of magnitude `bound` 127; values so small that it would overflow become zero. */
static inline float factor_to_127(float bound) {
    return bound > 1e-36f && bound < INFINITY ? 127.0f / bound : 0.0f;
}

/* Two codes of a unit of a query; returns the step of the lower ones. NaN or infinity in x makes it
 * NaN, and so the results. */
INLINE float encode_query(const float *x, int8_t *high, int8_t *low, int32_t sums[2]) {
    const float bound = float_of_bits((uint32_t)largest_magnitude(x, CODE_UNIT));
    const float factor = factor_to_127(bound);
    float scaled[CODE_UNIT];
#pragma omp simd
    for (int i = 0; i < CODE_UNIT; i++) scaled[i] = x[i] * factor;
    make_two_codes(scaled, CODE_UNIT, high, low, sums);
    return bound * (bound < INFINITY ? 1.0f / (127.0f * LOW_CODES) : NAN);
}

/* Scales and quantizes the queries of `rows` rows, and finds the range of keys of each. */
static void begin_code_rows(CodeRows *c, int64_t kv_head, int64_t first) {
    const AttentionParams *a = c->queries->params;
    const CacheTensor *keys = &a->cache->keys;
    const int64_t dim = keys->dim, group = a->heads / a->kv_heads;
    memset(c->out, 0, (size_t)(c->rows * a->cache->values.dim) * sizeof(float));
    for (int64_t row = 0; row < c->rows; row++) {
        const int64_t token = (first + row) / group;
        const int64_t own = c->queries->context - c->queries->tokens + token;
        const int64_t index = row_index(c->queries, kv_head, first + row);
        float part[MOST_ROTATED];
        c->own[row] = own;
        c->first[row] = first_key(a, own);
        c->last[row] = last_key(a, c->queries->row + token, own);
        c->largest[row] = a->sinks ? a->sinks[index % a->heads] : MIN_SCORE;
        c->total[row] = a->sinks ? 1 : 0;
        for (int64_t d = 0, size; d < dim; d += size) {
            size = take_part(dim, a->q + index * dim, d, (float)a->scale, part);
            for (int64_t i = 0; i < size; i += CODE_UNIT) {
                const int64_t place = (d + i) / CODE_UNIT * CODE_ROWS + row;
                int8_t *high = c->codes + place * 2 * CODE_UNIT, *low = high + CODE_UNIT;
                c->steps[place] = encode_query(part + i, high, low, c->sums + 2 * place);
            }
        }
    }
}

/* The plane of a step. */
INLINE const uint8_t *plane_of(const CodeRows *c, const CacheTensor *cached, int64_t kv_head,
                               int64_t start) {
    return (const uint8_t *)cached->data +
           c->queries->blocks[start >> STEP_SHIFT] * cached->block_stride +
           kv_head * cached->head_stride;
}

/* How many rows, the first ones, attend to the rests of a step: later rows are those of later
 * tokens. */
static int64_t rows_with_rests(const CodeRows *c, int64_t start) {
    const KVCache *cache = c->queries->params->cache;
    int64_t rows = 0;
    if (cache->rest_slots[c->queries->blocks[start >> STEP_SHIFT]] < 0) return 0;
    if (!start && cache->first_is_whole) return c->rows;
    while (rows < c->rows && c->own[rows] < start + STEP_KEYS) rows++;
    return rows;
}

/* The codes of four bytes of each lane, as they are multiplied: all of them, or the lower or upper
 * four bits of each. */
INLINE Ints take_codes(const int bits, const int part, Ints bytes) {
    if (bits == 8) return lanes_bytes(bytes);
    return lanes_and(part ? lanes_shift_right(bytes, 4) : bytes, lanes_byte(15));
}

INLINE Floats joined_sums(Ints high, Ints low) {
    return lanes_fma(lanes_convert(high), lanes_float(LOW_CODES), lanes_convert(low));
}

/* The scores of STEP_KEYS keys for `width` rows, or what the plane of their rests adds to them. The
 * same of the plane `next` is prefetched. */
INLINE void score_codes(const int bits, const bool are_rests, const int width, CodeRows *c,
                        int64_t row, const uint8_t *plane, const uint8_t *next) {
    const CacheTensor *keys = &c->queries->params->cache->keys;
    const int vectors = LANES == 16 ? 2 : 1, parts = 8 / bits;
    const int64_t dim = keys->dim, units = dim / CODE_UNIT;
    const uint8_t *scales = plane + STEP_KEYS * dim / parts;
    for (int64_t s = 0; s < STEP_KEYS; s += vectors * LANES) {
        Floats score[GROUP][2];
#pragma GCC unroll 4
        for (int r = 0; r < width; r++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                score[r][v] = are_rests ? lanes_load_floats(c->scores[row + r] + s + v * LANES)
                                        : lanes_zero();
        for (int64_t unit = 0; unit < units; unit++) {
            const int64_t place = unit * CODE_ROWS + row;
            const int8_t *codes = c->codes + place * 2 * CODE_UNIT;
            const int32_t *sums = c->sums + 2 * place;
            const float *steps = c->steps + place;
            Ints high[GROUP][2], low[GROUP][2];
#pragma GCC unroll 4
            for (int r = 0; r < width; r++)
#pragma GCC unroll 2
                for (int v = 0; v < vectors; v++) {
                    high[r][v] = lanes_int(-code_offset_of(bits) * sums[2 * r]);
                    low[r][v] = lanes_int(-code_offset_of(bits) * sums[2 * r + 1]);
                }
#pragma GCC unroll 8
            for (int i = 0; i < bits; i++) {
                const int64_t offset = ((unit * bits + i) * STEP_KEYS + s) * 4;
#pragma GCC unroll 2
                for (int v = 0; v < vectors; v++) {
                    const int64_t line = offset + v * LANES * 4;
                    const Ints bytes = lanes_load(plane + line);
                    __builtin_prefetch(next + line, 0, 2);
#pragma GCC unroll 2
                    for (int part = 0; part < parts; part++) {
                        const Ints key = take_codes(bits, part, bytes);
                        const int at = part * CODE_UNIT / 2 + i * 4;
#pragma GCC unroll 4
                        for (int r = 0; r < width; r++) {
                            const int8_t *four = codes + r * 2 * CODE_UNIT + at;
                            high[r][v] = lanes_dot_bytes(high[r][v], key, four);
                            low[r][v] = lanes_dot_bytes(low[r][v], key, four + CODE_UNIT);
                        }
                    }
                }
            }
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) {
                const Floats scale =
                    lanes_load_f16(scales + (unit * STEP_KEYS + s + v * LANES) * 2);
#pragma GCC unroll 4
                for (int r = 0; r < width; r++) {
                    const Floats step = lanes_float(are_rests ? steps[r] / REST_FACTOR : steps[r]);
                    const Floats sum = joined_sums(high[r][v], low[r][v]);
                    score[r][v] = lanes_fma(lanes_mul(sum, step), scale, score[r][v]);
                }
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < width; r++)
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                lanes_store(c->scores[row + r] + s + v * LANES, score[r][v]);
    }
}

/* The keys of a step that a row attends to. */
typedef struct {
    int first, end;
} Range;

static inline Range keys_of(const CodeRows *c, int64_t row, int64_t start) {
    const int64_t first = c->first[row] - start, end = c->last[row] + 1 - start;
    return (Range){(int)(first < 0 ? 0 : at_most(first, STEP_KEYS)),
                   (int)(end < 0 ? 0 : at_most(end, STEP_KEYS))};
}

/* Replaces a row's scores of the keys from `start` on by their weights, which are multiplied so that
 * the largest one of the step is 127. */
static void softmax_codes(CodeRows *c, int64_t row, int64_t start, float softcap) {
    float *scores = c->scores[row], step_largest = MIN_SCORE;
    const Range keys = keys_of(c, row, start);
    for (int s = 0; s < keys.first; s++) scores[s] = -INFINITY;
    for (int s = keys.end; s < STEP_KEYS; s++) scores[s] = -INFINITY;
    if (softcap > 0) {
#pragma omp simd
        for (int s = 0; s < STEP_KEYS; s++) scores[s] = capped(scores[s], softcap);
    }
#pragma omp simd reduction(max : step_largest)
    for (int s = 0; s < STEP_KEYS; s++)
        step_largest = scores[s] > step_largest ? scores[s] : step_largest;
    const float largest = step_largest > c->largest[row] ? step_largest : c->largest[row];
#pragma omp simd
    for (int s = 0; s < STEP_KEYS; s++) scores[s] = weight_of(scores[s], largest);
    c->factor[row] = exp_of(c->largest[row] - largest);
    c->largest[row] = largest;
    c->total[row] = c->total[row] * c->factor[row] + sum_of_weights(scores);
    const float bound = weight_of(step_largest, largest), factor = factor_to_127(bound);
#pragma omp simd
    for (int s = 0; s < STEP_KEYS; s++) scores[s] *= factor;
    c->weight_bound[row] = bound;
}

/* The scales of a unit of values, divided by their largest magnitude; returns the step of weights that
 * are multiplied by them. Only those of `keys` count: the others may be any, and become 0. */
static float take_scales(const uint8_t *halves, Range keys, float scales[STEP_KEYS]) {
    for (int s = 0; s < STEP_KEYS; s += LANES)
        lanes_store(scales + s, lanes_load_f16(halves + s * 2));
    for (int s = 0; s < keys.first; s++) scales[s] = 0;
    for (int s = keys.end; s < STEP_KEYS; s++) scales[s] = 0;
    const float bound = float_of_bits((uint32_t)largest_magnitude(scales, STEP_KEYS));
    const float factor = bound > 0 ? 1.0f / bound : 0.0f;
#pragma omp simd
    for (int s = 0; s < STEP_KEYS; s++) scales[s] *= factor;
    return bound < INFINITY ? bound / (127.0f * LOW_CODES) : NAN;
}

/* The codes of a row's weights times the scales of one unit. */
static void encode_weights(CodeRows *c, int64_t row, const float scales[STEP_KEYS], float step) {
    float products[STEP_KEYS];
    const float *weights = c->scores[row];
#pragma omp simd
    for (int s = 0; s < STEP_KEYS; s++) products[s] = weights[s] * scales[s];
    make_two_codes(products, STEP_KEYS, c->weight_codes[row][0], c->weight_codes[row][1],
                   c->weight_sums[row]);
    c->weight_step[row] = c->weight_bound[row] * step;
}

/* out = out * factor + the sum over keys of weight * value, for one unit of `width` rows; rests are
 * added to that. */
INLINE void mix_codes(const int bits, const bool are_rests, const int width, CodeRows *c,
                      int64_t row, int64_t unit, const uint8_t *plane, const uint8_t *next) {
    const int64_t dim = c->queries->params->cache->values.dim;
    const int parts = 8 / bits, columns = CODE_UNIT / parts;
    const int vectors = LANES == 16 && bits == 8 ? 2 : 1, sums = vectors * parts;
    const int64_t row_bytes = dim / parts;
    for (int64_t column = 0; column < columns; column += vectors * LANES) {
        Ints high[GROUP][2], low[GROUP][2];
#pragma GCC unroll 4
        for (int r = 0; r < width; r++)
#pragma GCC unroll 2
            for (int v = 0; v < sums; v++) {
                high[r][v] = lanes_int(-code_offset_of(bits) * c->weight_sums[row + r][0]);
                low[r][v] = lanes_int(-code_offset_of(bits) * c->weight_sums[row + r][1]);
            }
        const int8_t *codes = c->weight_codes[row][0];
        int64_t offset = (unit * columns + column) * 4;
        for (int s = 0; s < STEP_KEYS; s += 4, codes += 4, offset += row_bytes * 4) {
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) {
                const Ints bytes = lanes_load(plane + offset + v * LANES * 4);
                __builtin_prefetch(next + offset + v * LANES * 4, 0, 2);
#pragma GCC unroll 2
                for (int part = 0; part < parts; part++) {
                    const Ints value = take_codes(bits, part, bytes);
#pragma GCC unroll 4
                    for (int r = 0; r < width; r++) {
                        const int8_t *four = codes + r * 2 * STEP_KEYS;
                        Ints *sum = &high[r][v + part], *rest = &low[r][v + part];
                        *sum = lanes_dot_bytes(*sum, value, four);
                        *rest = lanes_dot_bytes(*rest, value, four + STEP_KEYS);
                    }
                }
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < width; r++)
#pragma GCC unroll 2
            for (int v = 0; v < sums; v++) {
                const int64_t place = bits == 8 ? v * LANES : v * CODE_UNIT / 2;
                float *out = c->out + (row + r) * dim + unit * CODE_UNIT + column + place;
                const Floats sum = lanes_load_floats(out);
                const Floats before =
                    are_rests ? sum : lanes_mul(sum, lanes_float(c->factor[row + r]));
                lanes_store(out, lanes_fma(joined_sums(high[r][v], low[r][v]),
                                           lanes_float(c->weight_step[row + r]), before));
            }
    }
}

/* `rows` rows, the first ones. */
INLINE void score_step(const int bits, const bool are_rests, CodeRows *c, int64_t rows,
                       const uint8_t *plane, const uint8_t *next) {
    int64_t row = 0;
    for (; row + GROUP <= rows; row += GROUP)
        score_codes(bits, are_rests, GROUP, c, row, plane, row ? plane : next);
    const uint8_t *after = row ? plane : next;
    if (rows - row == 3) score_codes(bits, are_rests, 3, c, row, plane, after);
    if (rows - row == 2) score_codes(bits, are_rests, 2, c, row, plane, after);
    if (rows - row == 1) score_codes(bits, are_rests, 1, c, row, plane, after);
}

/* The values of a step. Rows that attend to all of its keys share their scales. */
INLINE void mix_step(const int bits, const bool are_rests, CodeRows *c, int64_t rows,
                     int64_t start, const uint8_t *plane, const uint8_t *next) {
    const int64_t dim = c->queries->params->cache->values.dim;
    const float part = are_rests ? 1.0f / REST_FACTOR : 1.0f;
    const uint8_t *scales = plane + STEP_KEYS * dim * bits / 8;
    for (int64_t unit = 0; unit < dim / CODE_UNIT; unit++, scales += STEP_KEYS * 2) {
        float shared[STEP_KEYS], own[STEP_KEYS];
        const float shared_step = take_scales(scales, (Range){0, STEP_KEYS}, shared);
        for (int64_t row = 0; row < rows; row++) {
            const Range keys = keys_of(c, row, start);
            if (!keys.first && keys.end == STEP_KEYS)
                encode_weights(c, row, shared, shared_step * part);
            else
                encode_weights(c, row, own, take_scales(scales, keys, own) * part);
        }
        int64_t row = 0;
        for (; row + GROUP <= rows; row += GROUP)
            mix_codes(bits, are_rests, GROUP, c, row, unit, plane, row ? plane : next);
        const uint8_t *after = row ? plane : next;
        if (rows - row == 3) mix_codes(bits, are_rests, 3, c, row, unit, plane, after);
        if (rows - row == 2) mix_codes(bits, are_rests, 2, c, row, unit, plane, after);
        if (rows - row == 1) mix_codes(bits, are_rests, 1, c, row, unit, plane, after);
    }
}

static void end_code_rows(CodeRows *c, int64_t kv_head, int64_t first) {
    const AttentionParams *a = c->queries->params;
    const CacheTensor *values = &a->cache->values;
    const int64_t dim = values->dim, part = rotated_part(dim);
    for (int64_t row = 0; row < c->rows; row++) {
        const float *sums = c->out + row * dim, factor = 1.0f / c->total[row];
        float *out = a->out + row_index(c->queries, kv_head, first + row) * dim;
        for (int64_t d = 0; d < dim; d++) out[d] = sums[d] * factor;
        for (int64_t d = 0; d < dim; d += part)
            rotate_part(out + d, part);
    }
}

/* `rows` rows from `first` on, CODE_ROWS at most, of one key head of a sequence, as attend_rows
 * numbers them. `workspace` has code_rows_bytes. */
static void attend_codes(const SequenceQueries *queries, int64_t kv_head, int64_t first,
                         int64_t rows, void *workspace) {
    const AttentionParams *a = queries->params;
    const KVCache *cache = a->cache;
    const CacheTensor *keys = &cache->keys, *values = &cache->values;
    const int64_t units = keys->dim / CODE_UNIT;
    CodeRows *c = workspace;
    c->queries = queries;
    c->rows = rows;
    c->out = (float *)(c + 1);
    c->steps = c->out + CODE_ROWS * values->dim;
    c->sums = (int32_t *)(c->steps + CODE_ROWS * units);
    c->codes = (int8_t *)(c->sums + CODE_ROWS * units * 2);
    begin_code_rows(c, kv_head, first);
    int64_t start = c->first[0], last = 0;
    for (int64_t row = 0; row < rows; row++) {
        start = at_most(start, c->first[row]);
        last = c->last[row] > last ? c->last[row] : last;
    }
    for (start = start / STEP_KEYS * STEP_KEYS; start <= last; start += STEP_KEYS) {
        const int64_t next = start + STEP_KEYS <= last ? start + STEP_KEYS : start;
        const int64_t block = queries->blocks[start >> STEP_SHIFT];
        const int64_t whole = rows_with_rests(c, start);
        const uint8_t *plane = plane_of(c, keys, kv_head, start);
        const uint8_t *after = plane_of(c, keys, kv_head, next);
        if (keys->type == CACHE_Q8_0) score_step(8, false, c, rows, plane, after);
        else score_step(4, false, c, rows, plane, after);
        if (whole) {
            plane = rest_plane(cache, &cache->key_rests, block, kv_head);
            score_step(8, true, c, whole, plane, plane);
        }
        for (int64_t row = 0; row < rows; row++) softmax_codes(c, row, start, (float)a->softcap);
        plane = plane_of(c, values, kv_head, start);
        after = plane_of(c, values, kv_head, next);
        if (values->type == CACHE_Q8_0) mix_step(8, false, c, rows, start, plane, after);
        else mix_step(4, false, c, rows, start, plane, after);
        if (whole) {
            plane = rest_plane(cache, &cache->value_rests, block, kv_head);
            mix_step(8, true, c, whole, start, plane, plane);
        }
    }
    end_code_rows(c, kv_head, first);
}

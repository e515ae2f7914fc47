/* Packs rows of a file into groups, and decodes groups to floats; included once per instruction
 * set. */
#include "gemm/blocks.h"

/* A quad: four codes of a row, in one 32-bit word. */
INLINE uint32_t quad_at(const uint8_t *p) {
    uint32_t quad;
    memcpy(&quad, p, 4);
    return quad;
}

INLINE void put_quad(uint8_t *p, const uint32_t quad) { memcpy(p, &quad, 4); }

#define EACH_BYTE(mask) (0x01010101u * (mask))

/* Writes one row's 32 codes of a unit; `lane` is the row's lane of the unit's first line. */
INLINE void write_codes(const int bits, const uint8_t *codes, uint8_t *lane) {
    uint32_t pairs[2] = {0, 0}, single = 0;
    for (int k = 0; k < 8; k++) {
        uint32_t quad = quad_at(codes + 4 * k);
        if (bits == 8) put_quad(lane + LINE * k, quad);
        pairs[k >> 2] |= (quad >> (bits == 6 ? 4 : 0) & EACH_BYTE(3)) << (2 * (k & 3));
        single |= (quad >> (bits == 5 ? 4 : 2) & EACH_BYTE(1)) << k;
    }
    for (int k = 0; k < 4 && bits >= 4 && bits <= 6; k++) {
        uint32_t low = quad_at(codes + 4 * k), high = quad_at(codes + 16 + 4 * k);
        put_quad(lane + LINE * k, (low & EACH_BYTE(15)) | (high & EACH_BYTE(15)) << 4);
    }
    if (bits < 4 || bits == 6)
        for (int j = 0; j < 2; j++) put_quad(lane + LINE * (j + (bits == 6 ? 4 : 0)), pairs[j]);
    if (bits == 3 || bits == 5) put_quad(lane + LINE * (bits - 1), single);
}

INLINE void read_codes(const int bits, const uint8_t *lane, uint8_t *codes) {
    for (int k = 0; k < 8; k++) {
        uint32_t quad;
        if (bits == 8)
            quad = quad_at(lane + LINE * k);
        else if (bits >= 4)
            quad = quad_at(lane + LINE * (k & 3)) >> (4 * (k >> 2)) & EACH_BYTE(15);
        else
            quad = quad_at(lane + LINE * (k >> 2)) >> (2 * (k & 3)) & EACH_BYTE(3);
        if (bits == 6)
            quad |= (quad_at(lane + LINE * (4 + (k >> 2))) >> (2 * (k & 3)) & EACH_BYTE(3)) << 4;
        if (bits == 5 || bits == 3)
            quad |= (quad_at(lane + LINE * (bits - 1)) >> k & EACH_BYTE(1)) << (bits - 1);
        put_quad(codes + 4 * k, quad);
    }
}

/* A row's integer scales in a block, `count` quads. */
INLINE void write_lane(const uint8_t *quads, const int count, uint8_t *lines) {
    for (int k = 0; k < count; k++) put_quad(lines + LINE * k, quad_at(quads + 4 * k));
}

INLINE void read_lane(const uint8_t *lines, const int count, uint8_t *quads) {
    for (int k = 0; k < count; k++) put_quad(quads + 4 * k, quad_at(lines + LINE * k));
}

/* Lines of integer scales in a block: three if they have 6 bits, four if they have 8. */
INLINE int small_scale_lines(const Format format) {
    return block_units(format) == 1 ? 0 : format == Q2_K || format == Q6_K ? 4 : 3;
}

/* The float scale and minimum of a row in a grouped format. */
INLINE void write_floats(const Format format, const Block *b, const int row, uint8_t *block) {
    memcpy(block + 4 * row, &b->floats[0], 4);
    if (has_minimum(format)) memcpy(block + 4 * (GROUP_ROWS + row), &b->floats[1], 4);
}

INLINE void read_floats(const Format format, const uint8_t *block, const int row, Block *b) {
    memcpy(&b->floats[0], block + 4 * row, 4);
    if (has_minimum(format)) memcpy(&b->floats[1], block + 4 * (GROUP_ROWS + row), 4);
}

INLINE void write_scales(const Format format, const Block *b, const int row, uint8_t *block) {
    if (is_grouped(format)) {
        write_floats(format, b, row, block);
        return;
    }
    if (format == MXFP4) {
        block[row] = b->exponent;
        return;
    }
    const int lines = small_scale_lines(format);
    uint8_t scales[16];
    memcpy(scales, b->scales, 16);
    if (lines == 3)
        for (int i = 0; i < 12; i++)
            scales[i] |= (uint8_t)(scales[12 + (i & 3)] >> (2 * (i >> 2)) << 6);
    write_lane(scales, lines, block + 4 * row);
    block += LINE * lines + 2 * row;
    memcpy(block, &b->halves[0], 2);
    if (has_minimum(format)) memcpy(block + 2 * GROUP_ROWS, &b->halves[1], 2);
}

INLINE void read_scales(const Format format, const uint8_t *block, const int row, Block *b) {
    if (is_grouped(format)) {
        read_floats(format, block, row, b);
        return;
    }
    if (format == MXFP4) {
        b->exponent = block[row];
        return;
    }
    const int lines = small_scale_lines(format);
    uint8_t *scales = b->scales;
    read_lane(block + 4 * row, lines, scales);
    if (lines == 3)
        for (int i = 0; i < 4; i++) {
            scales[12 + i] =
                (uint8_t)(scales[i] >> 6 | scales[4 + i] >> 6 << 2 | scales[8 + i] >> 6 << 4);
            for (int j = 0; j < 12; j += 4) scales[i + j] &= 63;
        }
    block += LINE * lines + 2 * row;
    memcpy(&b->halves[0], block, 2);
    if (has_minimum(format)) memcpy(&b->halves[1], block + 2 * GROUP_ROWS, 2);
}

/* A weight is scale * (code - offset), or scale * code + minimum, rounded after each step. */
INLINE void block_values(const Format format, const Block *b, const int units, float *out) {
    const int count = units * UNIT_COLUMNS, run = UNIT_COLUMNS / unit_scales(format);
    const float d = is_grouped(format) ? b->floats[0]
                    : format == MXFP4  ? half_power_of_two(b->exponent)
                                       : float_of_half(b->halves[0]);
    const float m = is_grouped(format)    ? b->floats[1]
                    : has_minimum(format) ? float_of_half(b->halves[1])
                                          : 0;
    for (int j = 0; j < count / run; j++) {
        float scale = d, minimum = m;
        if (format == Q4_K || format == Q5_K) {
            scale = d * b->scales[j];
            minimum = -(m * b->scales[8 + j]);
        } else if (format == Q2_K) {
            scale = d * (b->scales[j] & 15);
            minimum = -(m * (b->scales[j] >> 4));
        } else if (format == Q6_K) {
            scale = d * (int8_t)b->scales[j];
        } else if (format == Q3_K) {
            scale = d * (b->scales[j] - 32);
        }
        for (int i = j * run; i < (j + 1) * run; i++) {
            int code = code_bits(format) == 8 ? (int8_t)b->codes[i] : b->codes[i];
            if (format == MXFP4) code = fp4_codes[code];
            code -= code_offset(format);
            out[i] = has_minimum(format) ? scale * (float)code + minimum
                     : format == NF4_32  ? scale * nf4_values[code]
                                         : scale * (float)code;
        }
    }
}

INLINE void pack_codes(const Format format, const uint8_t *blocks, int64_t row_bytes,
                       const int rows, int64_t columns, const int units, uint8_t *packed) {
    const int bits = code_bits(format);
    const int bytes = scale_bytes(format) + units * unit_bytes(bits);
    const uint8_t *next = blocks + rows * row_bytes; /* of the next group */
    Block b;
    for (int64_t column = 0; column < columns; column += units * UNIT_COLUMNS) {
        for (int i = 0; i < bytes; i += LINE) {
            __builtin_prefetch(next + i);
            __builtin_prefetch(packed + bytes + i, 1);
        }
        next += bytes;
        if (rows < GROUP_ROWS) memset(packed, 0, (size_t)bytes);
        for (int row = 0; row < rows; row++) {
            if (is_grouped(format))
                read_grouped(format, blocks + row * row_bytes, units, &b);
            else
                read_block(format, blocks + row * row_bytes, &b);
            write_scales(format, &b, row, packed);
            uint8_t *lane = packed + scale_bytes(format) + 4 * row;
            for (int u = 0; u < units; u++)
                write_codes(bits, b.codes + 32 * u, lane + u * unit_bytes(bits));
        }
        blocks += bytes / GROUP_ROWS;
        packed += bytes;
    }
}

/* Writes decoded values as floats or rounded to bf16. */
INLINE void put_values(const float *values, const int count, const Type type, void *out,
                       int64_t offset) {
    if (type == TYPE_F32)
        memcpy((float *)out + offset, values, (size_t)count * sizeof(float));
    else
        for (int i = 0; i < count; i++) ((uint16_t *)out)[offset + i] = bf16_of_float(values[i]);
}

INLINE void decode_codes(const Format format, const uint8_t *group, const int first,
                         const int count, int64_t columns, const int units, const Type type,
                         void *out) {
    const int bits = code_bits(format);
    float values[8 * UNIT_COLUMNS];
    Block b;
    for (int64_t column = 0; column < columns; column += units * UNIT_COLUMNS) {
        for (int row = first; row < first + count; row++) {
            read_scales(format, group, row, &b);
            const uint8_t *lane = group + scale_bytes(format) + 4 * row;
            for (int u = 0; u < units; u++)
                read_codes(bits, lane + u * unit_bytes(bits), b.codes + 32 * u);
            block_values(format, &b, units, values);
            put_values(values, units * UNIT_COLUMNS, type, out, (row - first) * columns + column);
        }
        group += scale_bytes(format) + units * unit_bytes(bits);
    }
}

/* The byte of a block for the code of FP8 in this row and column. */
INLINE int fp8_place(const int row, const int column) {
    return LINE * (column >> 2) + LINE / 2 * (column & 1) + 2 * row + !(column & 2);
}

/* A NaN among the codes becomes a scale that is NaN, since products take its code for 480. */
INLINE void pack_fp8(const uint8_t *blocks, int64_t row_bytes, const int rows, int64_t columns,
                     const int units, uint8_t *packed) {
    const int count = units * UNIT_COLUMNS, bytes = scale_bytes(FP8_32) + GROUP_ROWS * count;
    Block b;
    for (int64_t column = 0; column < columns; column += count, packed += bytes) {
        if (rows < GROUP_ROWS) memset(packed, 0, (size_t)bytes);
        for (int row = 0; row < rows; row++) {
            read_grouped(FP8_32, blocks + row * row_bytes, units, &b);
            uint8_t *codes = packed + scale_bytes(FP8_32);
            for (int i = 0; i < count; i++) {
                codes[fp8_place(row, i)] = b.codes[i];
                if ((b.codes[i] & 0x7f) == 0x7f) b.floats[0] = float_of_bits(0x7fc00000);
            }
            write_floats(FP8_32, &b, row, packed);
        }
        blocks += bytes / GROUP_ROWS;
    }
}

INLINE void decode_fp8(const uint8_t *group, const int first, const int count, int64_t columns,
                       const int units, const Type type, void *out) {
    const int length = units * UNIT_COLUMNS, bytes = scale_bytes(FP8_32) + GROUP_ROWS * length;
    float values[4 * UNIT_COLUMNS];
    Block b;
    for (int64_t column = 0; column < columns; column += length, group += bytes)
        for (int row = first; row < first + count; row++) {
            read_floats(FP8_32, group, row, &b);
            const uint8_t *codes = group + scale_bytes(FP8_32);
            for (int i = 0; i < length; i++)
                values[i] = float_of_fp8(codes[fp8_place(row, i)]) * b.floats[0];
            put_values(values, length, type, out, (row - first) * columns + column);
        }
}

/* Columns of a row that are adjacent in a unit: two columns of bf16 share a lane of a line; each
 * column of f16 is half a line, each of floats a line. */
INLINE int float_piece(const Format format) { return format == BF16 ? 2 : 1; }

INLINE uint8_t *float_place(const Format format, uint8_t *unit, const int row, const int column) {
    return unit + column * float_column_bytes(format) +
           row * float_piece(format) * float_bytes(format);
}

/* One row's unit of unquantized weights. */
INLINE void write_float_unit(const Format format, const uint8_t *values, const int row,
                             uint8_t *unit) {
    const int piece = float_piece(format), bytes = float_bytes(format);
    for (int i = 0; i < UNIT_COLUMNS; i += piece)
        memcpy(float_place(format, unit, row, i), values + i * bytes, (size_t)(piece * bytes));
}

INLINE void read_float_unit(const Format format, const uint8_t *unit, const int row,
                            uint8_t *values) {
    const int piece = float_piece(format), bytes = float_bytes(format);
    for (int i = 0; i < UNIT_COLUMNS; i += piece)
        memcpy(values + i * bytes, float_place(format, (uint8_t *)unit, row, i),
               (size_t)(piece * bytes));
}

/* Value i of a unit that `read_float_unit` read. */
INLINE float float_value(const Format format, const uint8_t *values, const int i) {
    uint16_t half;
    float value;
    if (format == F32) {
        memcpy(&value, values + 4 * i, sizeof value);
        return value;
    }
    memcpy(&half, values + 2 * i, sizeof half);
    return format == BF16 ? float_of_bf16(half) : float_of_half(half);
}

INLINE void pack_floats(const Format format, const uint8_t *blocks, int64_t row_bytes,
                        const int rows, int64_t columns, uint8_t *packed) {
    if (rows < GROUP_ROWS) memset(packed, 0, (size_t)group_bytes(format, columns));
    for (int64_t column = 0; column < columns; column += UNIT_COLUMNS) {
        int64_t left = columns - column;
        uint8_t values[UNIT_COLUMNS * sizeof(float)] = {0};
        for (int row = 0; row < rows; row++) {
            memcpy(values, blocks + row * row_bytes + column * float_bytes(format),
                   (size_t)(at_most(left, UNIT_COLUMNS) * float_bytes(format)));
            write_float_unit(format, values, row, packed + column * float_column_bytes(format));
        }
    }
}

INLINE void decode_floats(const Format format, const uint8_t *group, const int first,
                          const int count, int64_t columns, const Type type, void *out) {
    for (int64_t column = 0; column < columns; column += UNIT_COLUMNS) {
        int64_t left = columns - column;
        for (int row = 0; row < count; row++) {
            uint8_t bytes[UNIT_COLUMNS * sizeof(float)];
            float values[UNIT_COLUMNS];
            read_float_unit(format, group + column * float_column_bytes(format), first + row,
                            bytes);
            for (int i = 0; i < UNIT_COLUMNS; i++) values[i] = float_value(format, bytes, i);
            put_values(values, (int)(left < UNIT_COLUMNS ? left : UNIT_COLUMNS), type, out,
                       row * columns + column);
        }
    }
}

/* Packs up to 16 rows of `row_bytes` bytes each into one group; missing rows are zeros. */
static void pack_group(Format format, const uint8_t *blocks, int64_t row_bytes, int rows,
                       int64_t columns, uint8_t *packed) {
    const int units = block_units(format);
    switch (kernel_format(format)) {
#define PACK(FORMAT)                                                                             \
    case FORMAT:                                                                                 \
        pack_codes(FORMAT, blocks, row_bytes, rows, columns,                                     \
                   is_grouped(FORMAT) ? units : block_units(FORMAT), packed);                    \
        break;
        EACH_FORMAT(PACK)
    case FP8_32: pack_fp8(blocks, row_bytes, rows, columns, units, packed); break;
    case NF4_32: pack_codes(NF4_32, blocks, row_bytes, rows, columns, units, packed); break;
    case F16: pack_floats(F16, blocks, row_bytes, rows, columns, packed); break;
    case F32: pack_floats(F32, blocks, row_bytes, rows, columns, packed); break;
    default: pack_floats(BF16, blocks, row_bytes, rows, columns, packed); break;
    }
}

/* The values of rows first to first+count-1 of a group, exact as floats or rounded to bf16. */
static void decode_rows(Format format, const uint8_t *group, int first, int count,
                        int64_t columns, Type type, void *out) {
    const int units = block_units(format);
    switch (kernel_format(format)) {
#define DECODE(FORMAT)                                                                           \
    case FORMAT:                                                                                 \
        decode_codes(FORMAT, group, first, count, columns,                                       \
                     is_grouped(FORMAT) ? units : block_units(FORMAT), type, out);               \
        break;
        EACH_FORMAT(DECODE)
    case FP8_32: decode_fp8(group, first, count, columns, units, type, out); break;
    case NF4_32: decode_codes(NF4_32, group, first, count, columns, units, type, out); break;
    case F16: decode_floats(F16, group, first, count, columns, type, out); break;
    case F32: decode_floats(F32, group, first, count, columns, type, out); break;
    default: decode_floats(BF16, group, first, count, columns, type, out); break;
    }
}

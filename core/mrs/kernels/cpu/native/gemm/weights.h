/* The packed storage of weights.
 *
 * A group is 16 rows. Each 32-bit lane of a 64-byte line belongs to one row of the group, so that
 * a register accumulates 16 outputs and nothing is ever summed across lanes. A unit is 32 columns,
 * or eight quads: quad k is columns 4k to 4k+3, one byte of a lane each. The bits of a weight are
 * in several planes:
 *
 *   nibbles  4 lines  line j: low nibbles are quad j, high nibbles quad j+4
 *   pairs    2 lines  line j: bits 2i and 2i+1 are quad 4j+i
 *   single   1 line   bit k is quad k
 *   bytes    8 lines  line k is quad k, signed
 *
 * A block is one unit, or eight in the formats with two levels of scales. Its scales come first,
 * with as many bytes as in a GGUF file, so that a group is as large as 16 rows of the file:
 *
 *   scale, or scale and minimum: f16 for each row
 *   Q4_K Q5_K Q3_K  16 integers of 6 bits a row: four lines a, b, c, d of 4 bytes a row, of which
 *                   a, b, c are stored, with the bits of d in their upper two
 *   Q6_K Q2_K       16 integers of 8 bits a row: four lines of 4 bytes a row
 *
 * A block of a grouped format is 1, 2 or 4 units with one float scale for each row, and in the INT
 * formats a float minimum. A block of MXFP4 has one byte of scale for each row. A line of FP8 is
 * four columns in words of 16 bits: the high bytes of 16 rows are column 0, those of the next 16
 * words column 1, and the low bytes columns 2 and 3.
 *
 * A unit of bf16 has 16 lines: a lane of line j is columns 2j and 2j+1 of a row. A unit of f16 has as
 * many: the halves of line j are columns 2j and 2j+1. Line j of the 32 lines of a unit of F32 is
 * column j.
 */
#ifndef MRS_WEIGHTS_H
#define MRS_WEIGHTS_H

#include "mrs.h"

/* The formats with integer codes. */
#define EACH_FORMAT(CASE)                                                                        \
    CASE(Q4_0) CASE(Q4_1) CASE(Q5_0) CASE(Q5_1) CASE(Q8_0) CASE(Q2_K) CASE(Q3_K) CASE(Q4_K)      \
    CASE(Q5_K) CASE(Q6_K) CASE(MXFP4) CASE(INT2_32) CASE(INT3_32) CASE(INT4_32) CASE(INT8_32)

/* Bits of a weight's integer code. */
INLINE int code_bits(const Format format) {
    switch (format) {
    case Q4_0: case Q4_1: case Q4_K: case MXFP4: case INT4_32: case NF4_32: return 4;
    case Q5_0: case Q5_1: case Q5_K: return 5;
    case Q6_K: return 6;
    case Q2_K: case INT2_32: return 2;
    case Q3_K: case INT3_32: return 3;
    default: return 8;
    }
}

/* Whether a weight is scale * code - minimum; otherwise it is scale * (code - offset). */
INLINE bool has_minimum(const Format format) {
    return format == Q4_1 || format == Q5_1 || format == Q2_K || format == Q4_K ||
           format == Q5_K || is_grouped_int(format);
}

INLINE int code_offset(const Format format) {
    switch (format) {
    case Q4_0: return 8;
    case Q5_0: return 16;
    case Q6_K: return 32;
    case Q3_K: return 4;
    case MXFP4: return 12; /* of twice the value */
    default: return 0;
    }
}

/* Scales in a unit of 32 columns. */
INLINE int unit_scales(const Format format) {
    return format == Q2_K || format == Q3_K || format == Q6_K ? 2 : 1;
}

/* Bytes of a group's block that hold its scales. */
INLINE int scale_bytes(const Format format) {
    switch (format) {
    case Q4_0: case Q5_0: case Q8_0: return 2 * GROUP_ROWS;
    case Q4_1: case Q5_1: return 4 * GROUP_ROWS;
    case Q4_K: case Q5_K: return (12 + 4) * GROUP_ROWS;
    case Q3_K: return (12 + 2) * GROUP_ROWS;
    case Q6_K: return (16 + 2) * GROUP_ROWS;
    case Q2_K: return (16 + 4) * GROUP_ROWS;
    case MXFP4: return GROUP_ROWS;
    case INT2_32: case INT3_32: case INT4_32: case INT8_32: return 8 * GROUP_ROWS;
    case FP8_32: case NF4_32: return 4 * GROUP_ROWS;
    default: return 0;
    }
}

INLINE int unit_bytes(const int bits) { return bits * UNIT_COLUMNS / 8 * GROUP_ROWS; }

#endif

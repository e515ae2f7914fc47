"""Layout of packed matrices in the native library: groups of interleaved rows."""

from __future__ import annotations

from mrs.formats import GROUP_SIZES, INT_BITS, Format

#: Formats that the native library multiplies, in its order. Weights of other formats are decoded
#: for each product.
PACKED_FORMATS = (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4",
    *(f"INT{bits}_{size}" for bits in INT_BITS for size in GROUP_SIZES), "F16", "BF16", "F32",
    *(f"FP8_{size}" for size in GROUP_SIZES), *(f"NF4_{size}" for size in GROUP_SIZES),
)  # fmt: skip
#: Those that are multiplied with activations in floats; others, with 8-bit codes of activations.
FLOAT_FORMATS = PACKED_FORMATS[PACKED_FORMATS.index("F16") :]
#: Rows of a group; a matrix is padded to whole groups.
GROUP_ROWS = 16
#: Columns of a unit; rows of F16, BF16 and F32 are padded to whole units.
UNIT_COLUMNS = 32


def packed_bytes(stored: Format, rows: int, columns: int) -> int:
    """Bytes of a packed matrix. ValueError if a row is not a whole number of blocks."""
    padded = columns if stored.is_quantized else -(-columns // UNIT_COLUMNS) * UNIT_COLUMNS
    return stored.size_bytes((-(-rows // GROUP_ROWS) * GROUP_ROWS, padded))

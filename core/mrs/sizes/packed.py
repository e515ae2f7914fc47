"""Matrices as the native library keeps them, in groups of interleaved rows."""

from __future__ import annotations

from mrs.formats import Format

#: Formats that the native library multiplies, in its order; other weights are decoded where they
#: are used.
PACKED_FORMATS = (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16",
)  # fmt: skip
#: Rows of a group; a matrix is padded to whole ones.
GROUP_ROWS = 16
#: Columns of a unit; those of plain numbers are padded to whole ones.
UNIT_COLUMNS = 32


def packed_bytes(stored: Format, rows: int, columns: int) -> int:
    """Bytes of a matrix; ValueError where rows cut a block."""
    padded = columns if stored.is_quantized else -(-columns // UNIT_COLUMNS) * UNIT_COLUMNS
    return stored.size_bytes((-(-rows // GROUP_ROWS) * GROUP_ROWS, padded))

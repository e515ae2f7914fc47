"""Integer codes with a scale, and a zero point or a bias, for each group of columns of a row."""

from __future__ import annotations

from mrs.formats import FORMATS, GROUP_SIZES, INT_BITS, Format
from mrs.weights.weight_scheme import Misfit, Parts

FLOATS = ("F16", "BF16", "F32")
#: Rows whose zeros are whole words for any number of bits.
ALIGNED_ROWS = 32
#: Formats of GGUF with float16 scales, without and with a minimum, by bits.
_SYMMETRIC = {4: "Q4_0", 8: "Q8_0"}
_WITH_BIAS = {4: "Q4_1"}


def affine_format(
    bits: int,
    group: int,
    columns: int,
    scales: Format,
    *,
    is_symmetric: bool,
    has_bias: bool = False,
) -> Format:
    """The format in memory with the same values; F32 if no format has such groups.

    Zero points and biases need the float32 minimum of an INT format, except biases in float16.
    """
    known = _SYMMETRIC if is_symmetric else _WITH_BIAS if has_bias else {}
    if scales.name == "F16" and bits in known and group % 32 == 0 and columns % 32 == 0:
        return FORMATS[known[bits]]
    size = group_size(group, columns)
    if size is None or bits > 8:
        return FORMATS["F32"]
    code_bits = next(each for each in INT_BITS if bits <= each)
    return FORMATS[f"INT{code_bits}_{size}"]


def group_size(group: int, columns: int) -> int | None:
    """The largest size of groups in memory that divides groups and rows of a file, if any does."""
    sizes = (size for size in reversed(GROUP_SIZES) if group % size == 0 and columns % size == 0)
    return next(sizes, None)


def columns_of_group(parts: Parts, role: str, groups: int, columns: int, wanted: int | None) -> int:
    """Columns of a group when rows have `groups` groups; Misfit if the config says another size.

    `wanted` is -1 if a row is one group, and None if the config says nothing.
    """
    size = columns if wanted == -1 else wanted or -(-columns // max(groups, 1))
    if groups < 1 or -(-columns // size) != groups:
        expected = -(-columns // size)
        raise Misfit(role, f"has {groups} groups of {columns} columns, expected {expected}")
    return size


def bits_of_words(
    parts: Parts, role: str, words: int, values: int, wanted: int | None, allowed: tuple[int, ...]
) -> int:
    """Bits of a value when `words` of 32 bits hold `values`; Misfit if the config says others."""
    for bits in (wanted,) if wanted else allowed:
        if words == -(-values * bits // 32):
            return bits
    expected = -(-values * (wanted or allowed[0]) // 32)
    raise Misfit(role, f"has {words} words for {values} values, expected {expected}")

"""compressed-tensors, as llm-compressor writes them: integers, packed or not, and floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from mrs.architecture.schemes.affine import FLOATS, affine_format, bits_of_words, columns_of_group
from mrs.architecture.weight_scheme import (
    Layout,
    Misfit,
    Parts,
    WeightScheme,
    matrix_shape,
    require,
    rows_of,
)

#: Other widths are packed differently by old and new programs.
BITS = (4, 8, 2)


@dataclass(frozen=True)
class PackedInts(WeightScheme):
    """Codes in words of 32 bits along the inputs. A weight is scale * (code - zero).

    `bits` is None if they differ between weights.
    """

    name = "compressed-tensors"
    suffixes: ClassVar[Mapping[str, str]] = {
        "codes": ".weight_packed",
        "scales": ".weight_scale",
        "zeros": ".weight_zero_point",
        "order": ".weight_g_idx",
        "shape": ".weight_shape",
        "input": ".input_scale",
    }
    marker = "codes"
    optional = ("zeros", "order")
    unused = ("shape", "input")

    bits: int | None

    def layout(self, parts: Parts, columns: int) -> Layout:
        rows, words = matrix_shape(parts, "codes")
        bits = bits_of_words(parts, "codes", words, columns, self.bits, BITS)
        groups = groups_of_rows(parts, rows)
        require(parts, "codes", ("I32",))
        if "zeros" in parts:
            require(parts, "zeros", ("I32",), (-(-rows * bits // 32), groups))
        if "order" in parts:
            require(parts, "order", ("I32", "I64"), (columns,))
        group = columns_of_group(parts, "scales", groups, columns, None)
        scales = parts["scales"].format
        format = affine_format(bits, group, columns, scales, is_symmetric="zeros" not in parts)
        return Layout(rows, bits, group, format, "order" in parts and groups > 1)


@dataclass(frozen=True)
class PlainInts(WeightScheme):
    """Codes of 8 bits, signed, with a scale for the tensor, for each row or each group."""

    name = "compressed-tensors"
    suffixes: ClassVar[Mapping[str, str]] = {
        "codes": ".weight",
        "scales": ".weight_scale",
        "zeros": ".weight_zero_point",
        "input": ".input_scale",
        "input zeros": ".input_zero_point",
    }
    marker = "scales"
    optional = ("zeros",)
    unused = ("input", "input zeros")

    def layout(self, parts: Parts, columns: int) -> Layout:
        rows = rows_of(parts, "codes", columns)
        require(parts, "codes", ("I8",))
        groups = groups_of_rows(parts, rows)
        if "zeros" in parts:
            require(parts, "zeros", ("I8",), parts["scales"].shape)
        group = columns_of_group(parts, "scales", groups, columns, None)
        scales = parts["scales"].format
        format = affine_format(8, group, columns, scales, is_symmetric="zeros" not in parts)
        return Layout(rows, 8, group, format)


def groups_of_rows(parts: Parts, rows: int) -> int:
    """Groups of a row; Misfit unless there is one scale, or as many for each row."""
    shape = parts["scales"].shape
    require(parts, "scales", FLOATS)
    if shape in ((), (1,)):
        return 1
    height, groups = matrix_shape(parts, "scales") if len(shape) > 1 else (shape[0], 1)
    if height != rows and shape != (1, 1):
        raise Misfit("scales", f"has shape {list(shape)}, expected [{rows}, {groups}]")
    return groups

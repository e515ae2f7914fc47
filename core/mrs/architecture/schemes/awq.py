"""AWQ in its GEMM layout: 4 bits along the outputs, eight shuffled codes in a word, transposed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from mrs.architecture.config import Config
from mrs.architecture.schemes.affine import FLOATS, affine_format, columns_of_group
from mrs.architecture.schemes.gptq import group_of
from mrs.architecture.weight_scheme import (
    Layout,
    Misfit,
    Parts,
    Quantization,
    WeightScheme,
    matrix_shape,
    require,
)
from mrs.errors import Unsupported


@dataclass(frozen=True)
class Awq(WeightScheme):
    """A weight is scale * (code - zero)."""

    name = "AWQ"
    suffixes: ClassVar[Mapping[str, str]] = {
        "codes": ".qweight",
        "zeros": ".qzeros",
        "scales": ".scales",
    }
    marker = "codes"

    group: int

    def layout(self, parts: Parts, columns: int) -> Layout:
        stored_columns, words = matrix_shape(parts, "codes")
        groups, rows = matrix_shape(parts, "scales")
        if stored_columns != columns:
            raise Misfit("codes", f"has {stored_columns} rows, expected {columns}")
        group = columns_of_group(parts, "scales", groups, columns, self.group)
        require(parts, "codes", ("I32",), (columns, words))
        require(parts, "scales", FLOATS, (groups, 8 * words))
        require(parts, "zeros", ("I32",), (groups, words))
        scales = parts["scales"].format
        format = affine_format(4, group, columns, scales, is_symmetric=False)
        return Layout(rows, 4, group, format)


def read_awq(config: Config) -> Quantization:
    version = config.text("version", config.values.get("format", "gemm")).lower()
    bits = config.positive("bits", config.values.get("w_bit"))
    if version != "gemm" or bits != 4:
        raise Unsupported(
            f"AWQ of version {version!r} with {bits} bits is not supported",
            where=config.where,
            hint="only version gemm with 4 bits is supported",
        )
    key = "group_size" if config.has("group_size") else "q_group_size"
    return Quantization((Awq(group_of(config, key)),))

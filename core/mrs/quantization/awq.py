"""AWQ in its GEMM layout: 4 bits along the outputs, eight shuffled codes in a word, transposed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mrs.config.config import Config
from mrs.errors import Unsupported
from mrs.quantization.affine import FLOATS, affine_format, columns_of_group
from mrs.quantization.gptq import group_of
from mrs.weights.weight_scheme import (
    Layout,
    Misfit,
    PartReader,
    Parts,
    Quantization,
    WeightScheme,
    matrix_shape,
    require,
)

if TYPE_CHECKING:
    from torch import Tensor

#: The nibble of a word in which each of its eight columns is.
_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)


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

    def unpack(self, layout: Layout, parts: PartReader, rows: range, columns: int) -> Tensor:
        from mrs.quantization.gguf.affine_blocks import affine_blocks

        words = range(rows.start // 8, -(-rows.stop // 8))
        inside = slice(rows.start - 8 * words.start, rows.stop - 8 * words.start)
        codes = _nibbles(parts.columns("codes", words))[inside]
        zeros = _nibbles(parts.columns("zeros", words))[inside].float()
        scales = parts.columns("scales", rows).T.float()
        return affine_blocks(layout, codes, scales, zeros=zeros)


def _nibbles(words: Tensor) -> Tensor:
    """int32 (n, words) to uint8 (8 * words, n)."""
    from mrs.quantization.gguf.affine_blocks import unpack_stream

    values = unpack_stream(words.T, 4, 8 * len(words)).view(words.shape[1], -1, 8)
    return values[:, :, list(_NIBBLES)].transpose(1, 2).flatten(0, 1)


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

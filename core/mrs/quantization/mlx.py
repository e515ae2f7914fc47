"""MLX's affine layout, also called AFQ: one stream of bits along a row, a bias for each group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mrs.config.config import Config
from mrs.errors import Unsupported
from mrs.quantization.affine import FLOATS, affine_format, bits_of_words, columns_of_group
from mrs.quantization.fp4 import MlxMxfp4
from mrs.weights.weight_scheme import (
    Layout,
    PartReader,
    Parts,
    Quantization,
    WeightScheme,
    matrix_shape,
    require,
)

if TYPE_CHECKING:
    from torch import Tensor

_BITS = (4, 8, 2, 3, 5, 6)


@dataclass(frozen=True)
class Mlx(WeightScheme):
    """A weight is scale * code + bias. Bits and groups may differ between weights."""

    name = "MLX"
    suffixes: ClassVar[Mapping[str, str]] = {
        "codes": ".weight",
        "scales": ".scales",
        "biases": ".biases",
    }
    marker = "scales"

    def layout(self, parts: Parts, columns: int) -> Layout:
        rows, words = matrix_shape(parts, "codes")
        _, groups = matrix_shape(parts, "scales")
        bits = bits_of_words(parts, "codes", words, columns, None, _BITS)
        group = columns_of_group(parts, "scales", groups, columns, None)
        require(parts, "codes", ("U32",))
        shape = (*parts["codes"].shape[:-1], groups)
        require(parts, "scales", FLOATS, shape)
        require(parts, "biases", (parts["scales"].format.name,), shape)
        scales = parts["scales"].format
        format = affine_format(bits, group, columns, scales, is_symmetric=False, has_bias=True)
        return Layout(rows, bits, group, format)

    def unpack(self, layout: Layout, parts: PartReader, rows: range, columns: int) -> Tensor:
        from mrs.quantization.gguf.affine_blocks import affine_blocks, unpack_stream

        codes = unpack_stream(parts.rows("codes", rows), layout.bits, columns)
        scales, biases = (parts.rows(role, rows).float() for role in ("scales", "biases"))
        return affine_blocks(layout, codes, scales, biases=biases)


def read_mlx(config: Config) -> Quantization:
    mode = config.text("mode", "affine")
    if mode == "mxfp4":
        return Quantization((MlxMxfp4(),))
    if mode != "affine":
        raise Unsupported(f"MLX files of mode {mode!r} are not supported", where=config.where)
    return Quantization((Mlx(),))

"""MLX's affine layout, also called AFQ: one stream of bits along a row, a bias for each group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from mrs.architecture.config import Config
from mrs.architecture.schemes.affine import FLOATS, affine_format, bits_of_words, columns_of_group
from mrs.architecture.schemes.fp4 import MlxMxfp4
from mrs.architecture.weight_scheme import (
    Layout,
    Parts,
    Quantization,
    WeightScheme,
    matrix_shape,
    require,
)
from mrs.errors import Unsupported

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


def read_mlx(config: Config) -> Quantization:
    mode = config.text("mode", "affine")
    if mode == "mxfp4":
        return Quantization((MlxMxfp4(),))
    if mode != "affine":
        raise Unsupported(f"MLX files of mode {mode!r} are not supported", where=config.where)
    return Quantization((Mlx(),))

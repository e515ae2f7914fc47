"""The kinds of quantized layers in UQFF files, which have several tensors.

The reader of the files (`mrs.source.uqff_tensors`) gives codes the shape of the weight: its last
dimension is that of the weight in the type of the codes. Blocks of GGUF need no scheme.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from mrs.architecture.config import Config
from mrs.architecture.schemes.affine import FLOATS, affine_format
from mrs.architecture.schemes.fp8 import Fp8
from mrs.architecture.schemes.mlx import Mlx
from mrs.architecture.weight_scheme import (
    Layout,
    Misfit,
    Parts,
    Quantization,
    WeightScheme,
    matrix_shape,
    require,
    rows_of,
)
from mrs.formats import FORMATS

#: Values of a block of Q8_1 or F8Q8.
BLOCK = 32
#: Bytes of these blocks: Q8_1 has a scale, a sum and codes, F8Q8 has a scale and codes.
Q8_1_BYTES, F8Q8_BYTES = 36, 33


class Afq(Mlx):
    """A weight is scale * code + bias."""

    name = "AFQ"
    shares_columns = False
    suffixes: ClassVar[Mapping[str, str]] = {
        "codes": ".weight",
        "scales": ".weight.scales",
        "biases": ".weight.biases",
    }
    marker = "biases"


@dataclass(frozen=True)
class StridedHqq(WeightScheme):
    """A weight is scale * (code - zero); every n-th value belongs to the same of n groups."""

    name = "HQQ"
    shares_columns = False
    suffixes: ClassVar[Mapping[str, str]] = {
        "codes": ".weight",
        "scales": ".weight.scales",
        "zeros": ".weight.zeros",
    }
    marker = "zeros"

    def layout(self, parts: Parts, columns: int) -> Layout:
        rows, width = matrix_shape(parts, "codes")
        require(parts, "codes", ("U8",))
        bits = 8 * width // columns
        if width * 8 != bits * columns or bits not in (2, 4, 8):
            raise Misfit("codes", f"has {width} bytes in rows of {columns}")
        _, groups = matrix_shape(parts, "scales")
        for role in ("scales", "zeros"):
            require(parts, role, FLOATS, (1, groups))
        if rows * columns % groups or rows * columns * bits % (8 * groups):
            raise Misfit("scales", f"has {groups} groups for {rows * columns} values")
        return Layout(rows, bits, rows * columns // groups, FORMATS["F32"])


class TensorFp8(Fp8):
    """8-bit floats with one scale. Other scales of the layer are for activations."""

    name = "FP8"
    suffixes: ClassVar[Mapping[str, str]] = {
        "codes": ".weight",
        "scales": ".weight.dequant_w_scale",
    }
    marker = "scales"
    unused: ClassVar[Collection[str]] = ()


@dataclass(frozen=True)
class F8q8(WeightScheme):
    """Blocks of an F8_E4M3 scale, which is multiplied by 416, and signed codes of 8 bits."""

    name = "F8Q8"
    shares_columns = False
    suffixes: ClassVar[Mapping[str, str]] = {"codes": ".weight", "count": ".weight.num_blocks"}
    marker = "count"
    unused: ClassVar[Collection[str]] = ("count",)

    def layout(self, parts: Parts, columns: int) -> Layout:
        rows = _rows_of_blocks(parts, columns, F8Q8_BYTES)
        scales = FORMATS["F32"]
        return Layout(rows, 8, BLOCK, affine_format(8, BLOCK, columns, scales, is_symmetric=False))


@dataclass(frozen=True)
class Q8Sum(WeightScheme):
    """Blocks of Q8_1, whose scales and codes are those of Q8_0; the sum of the codes is unused."""

    name = "Q8_1"
    shares_columns = False
    suffixes: ClassVar[Mapping[str, str]] = {"codes": ".weight", "type": ".weight.dtype"}
    marker = "type"
    unused: ClassVar[Collection[str]] = ("type",)

    def layout(self, parts: Parts, columns: int) -> Layout:
        return Layout(_rows_of_blocks(parts, columns, Q8_1_BYTES), 8, BLOCK, FORMATS["Q8_0"])


@dataclass(frozen=True)
class StackedMxfp4(WeightScheme):
    """Groups of 32 values of 4 bits, two in a byte with the first one low, and an exponent."""

    name = "MXFP4"
    shares_columns = False
    suffixes: ClassVar[Mapping[str, str]] = {"codes": ".weight", "scales": ".weight.scales"}
    marker = "scales"

    def layout(self, parts: Parts, columns: int) -> Layout:
        rows = _rows_of_blocks(parts, columns, BLOCK // 2)
        outer = parts["codes"].shape[:-1]
        require(parts, "scales", ("U8", "F8_E8M0"), (*outer, columns // BLOCK))
        return Layout(rows, 4, BLOCK, FORMATS["MXFP4"])


def _rows_of_blocks(parts: Parts, columns: int, block_bytes: int) -> int:
    if columns % BLOCK:
        raise Misfit("codes", f"has rows of {columns}, no multiple of {BLOCK}")
    require(parts, "codes", ("U8",))
    return rows_of(parts, "codes", columns // BLOCK * block_bytes)


def read_uqff(config: Config) -> Quantization:
    """All kinds, the one with the fewest tensors last: its marker is a tensor of others, too."""
    kinds = (Afq(), StridedHqq(), TensorFp8(None), F8q8(), Q8Sum(), StackedMxfp4())
    return Quantization(kinds, stacks_experts=True)

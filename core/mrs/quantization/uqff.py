"""The kinds of quantized layers in UQFF files, which have several tensors.

The reader of the files (`mrs.source.uqff_tensors`) gives codes the shape of the weight: its last
dimension is that of the weight in the type of the codes. Blocks of GGUF need no scheme.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, ClassVar

from mrs.config.config import Config
from mrs.formats import FORMATS, UQFF_BLOCK, UQFF_F8Q8_BYTES, UQFF_Q8_1_BYTES
from mrs.quantization.affine import FLOATS, affine_format
from mrs.quantization.fp4 import Mxfp4
from mrs.quantization.fp8 import Fp8
from mrs.quantization.hqq import codes_in_parts
from mrs.quantization.mlx import Mlx
from mrs.weights.weight_scheme import (
    Layout,
    Misfit,
    PartReader,
    Parts,
    Quantization,
    WeightScheme,
    matrix_shape,
    require,
    rows_of,
)

if TYPE_CHECKING:
    from torch import Tensor

#: The scale of a block of F8Q8 is stored times this, which mistral.rs takes for the largest
#: F8_E4M3. It is the largest but one, as the scales that mistral.rs 0.9.5 writes show.
_F8Q8_UNIT = 416


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

    def unpack(self, layout: Layout, parts: PartReader, rows: range, columns: int) -> Tensor:
        """Values in float32. A byte has the codes of values that are a part of the tensor apart."""
        import torch

        from mrs.quantization.gguf.bits import bytes_of

        values = range(rows.start * columns, rows.stop * columns)
        size = prod(parts.shape("codes"))
        codes = codes_in_parts(partial(parts.bytes, "codes"), values, size, layout.bits)
        scales, zeros = (parts.floats(role).flatten() for role in ("scales", "zeros"))
        group = torch.arange(values.start, values.stop) % len(scales)
        decoded = (codes.float() - zeros[group]) * scales[group]
        return bytes_of(decoded.view(len(rows), columns))


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
        rows = _rows_of_blocks(parts, columns, UQFF_F8Q8_BYTES)
        format = affine_format(8, UQFF_BLOCK, columns, FORMATS["F32"], is_symmetric=False)
        return Layout(rows, 8, UQFF_BLOCK, format)

    def unpack(self, layout: Layout, parts: PartReader, rows: range, columns: int) -> Tensor:
        import torch

        from mrs.quantization.gguf.affine_blocks import affine_blocks

        blocks = parts.rows("codes", rows).view(-1, UQFF_F8Q8_BYTES)
        scales = blocks[:, :1].contiguous().view(torch.float8_e4m3fn).float() / _F8Q8_UNIT
        scales = scales.view(len(rows), -1)
        codes = (blocks[:, 1:] ^ 0x80).reshape(len(rows), columns)
        return affine_blocks(layout, codes, scales, zeros=torch.full_like(scales, 128))


@dataclass(frozen=True)
class Q8Sum(WeightScheme):
    """Blocks of Q8_1, whose scales and codes are those of Q8_0; the sum of the codes is unused."""

    name = "Q8_1"
    shares_columns = False
    suffixes: ClassVar[Mapping[str, str]] = {"codes": ".weight", "type": ".weight.dtype"}
    marker = "type"
    unused: ClassVar[Collection[str]] = ("type",)

    def layout(self, parts: Parts, columns: int) -> Layout:
        rows = _rows_of_blocks(parts, columns, UQFF_Q8_1_BYTES)
        return Layout(rows, 8, UQFF_BLOCK, FORMATS["Q8_0"])

    def unpack(self, layout: Layout, parts: PartReader, rows: range, columns: int) -> Tensor:
        import torch

        blocks = parts.rows("codes", rows).view(-1, UQFF_Q8_1_BYTES)
        kept = torch.cat((blocks[:, :2], blocks[:, UQFF_Q8_1_BYTES - UQFF_BLOCK :]), 1)
        return kept.view(len(rows), -1)


class StackedMxfp4(Mxfp4):
    """Groups of 32 values of 4 bits, two in a byte with the first one low, and an exponent."""

    shares_columns = False
    suffixes: ClassVar[Mapping[str, str]] = {"codes": ".weight", "scales": ".weight.scales"}
    marker = "scales"

    def layout(self, parts: Parts, columns: int) -> Layout:
        rows = _rows_of_blocks(parts, columns, UQFF_BLOCK // 2)
        outer = parts["codes"].shape[:-1]
        require(parts, "scales", ("U8", "F8_E8M0"), (*outer, columns // UQFF_BLOCK))
        return Layout(rows, 4, UQFF_BLOCK, FORMATS["MXFP4"])


def _rows_of_blocks(parts: Parts, columns: int, block_bytes: int) -> int:
    if columns % UQFF_BLOCK:
        raise Misfit("codes", f"has rows of {columns}, no multiple of {UQFF_BLOCK}")
    require(parts, "codes", ("U8",))
    return rows_of(parts, "codes", columns // UQFF_BLOCK * block_bytes)


def read_uqff(config: Config) -> Quantization:
    """All kinds, the one with the fewest tensors last: its marker is a tensor of others, too."""
    kinds = (Afq(), StridedHqq(), TensorFp8(None), F8q8(), Q8Sum(), StackedMxfp4())
    return Quantization(kinds, stacks_experts=True)

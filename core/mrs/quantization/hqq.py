"""HQQ: codes of grouped weights with float zeros, packed by parts of the groups.

The first part is in the highest bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, ClassVar

from mrs.config.config import Config
from mrs.errors import Unsupported
from mrs.quantization.affine import FLOATS, affine_format
from mrs.quantization.gptq import group_of
from mrs.weights.weight_scheme import (
    Layout,
    Misfit,
    PartReader,
    Parts,
    Quantization,
    WeightScheme,
    require,
)

if TYPE_CHECKING:
    from torch import Tensor

_BITS = (8, 4, 2)
#: Values of a layer that follow from the config or from shapes.
_VALUES = (
    "nbits", "group_size", "axis", "shape", "packing", "unpack_view_dtype", "view_as_float",
    "compute_dtype", "channel_wise", "optimize", "round_zero", "encoded_state_dict",
    "stores_quant_config", "offload_meta", "quant_scale", "quant_zero",
)  # fmt: skip


@dataclass(frozen=True)
class Hqq(WeightScheme):
    """A weight is scale * (code - zero). Groups are rows of the grouped matrix."""

    name = "HQQ"
    suffixes: ClassVar[Mapping[str, str]] = {
        "codes": ".W_q",
        "scales": ".scale",
        "zeros": ".zero",
        **{name: f".{name}" for name in _VALUES},
    }
    marker = "codes"
    unused = _VALUES

    bits: int
    group: int

    def layout(self, parts: Parts, columns: int) -> Layout:
        group = columns if self.group == -1 else self.group
        values = prod(parts["codes"].shape) * 8 // self.bits
        if values % columns or columns % group:
            raise Misfit("codes", f"has {values} values, not rows of {columns}")
        groups = values // group
        require(parts, "codes", ("U8",), (groups * self.bits // 8, group))
        for role in ("scales", "zeros"):
            require(parts, role, FLOATS, (groups, 1), (groups,))
        scales = parts["scales"].format
        format = affine_format(self.bits, group, columns, scales, is_symmetric=False)
        return Layout(values // columns, self.bits, group, format)

    def unpack(self, layout: Layout, parts: PartReader, rows: range, columns: int) -> Tensor:
        from mrs.quantization.gguf.affine_blocks import affine_blocks

        each = columns // layout.group
        groups = range(rows.start * each, rows.stop * each)
        height = layout.rows * each * layout.bits // 8
        codes = codes_in_parts(partial(parts.rows, "codes"), groups, height, layout.bits)
        codes = codes.view(len(rows), columns)
        scales, zeros = (
            parts.rows(role, groups, 1).float().view(len(rows), each)
            for role in ("scales", "zeros")
        )
        return affine_blocks(layout, codes, scales, zeros=zeros)


def codes_in_parts(read: Callable[[range], Tensor], span: range, size: int, bits: int) -> Tensor:
    """The codes of a span of rows or values, of which those `size` apart share their bytes.

    `read` gives some of the `size` rows or values of bytes.
    """
    import torch

    chunks = []
    for part in range(8 // bits):
        first, last = max(span.start, part * size), min(span.stop, (part + 1) * size)
        if first < last:
            packed = read(range(first - part * size, last - part * size))
            chunks.append(packed >> 8 - bits * (part + 1) & (1 << bits) - 1)
    return torch.cat(chunks)


def read_hqq(config: Config) -> Quantization:
    inner = Config(config.mapping("quant_config"), config.where)
    params = Config(inner.mapping("weight_quant_params"), config.where)
    bits, axis = params.positive("nbits"), params.integer("axis", 1)
    if bits not in _BITS or axis != 1 or params.values.get("view_as_float"):
        raise Unsupported(
            f"HQQ with {bits} bits along axis {axis} is not supported", where=config.where
        )
    return Quantization((Hqq(bits, group_of(params)),))

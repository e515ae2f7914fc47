"""bitsandbytes: 4 bits that index a table (nf4, fp4), or 8 bits with a scale for each row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from mrs.architecture.config import Config
from mrs.architecture.schemes.affine import affine_format, group_size
from mrs.architecture.weight_scheme import (
    Layout,
    Misfit,
    Parts,
    Quantization,
    WeightScheme,
    require,
    rows_of,
)
from mrs.formats import FORMATS


@dataclass(frozen=True)
class TableCodes(WeightScheme):
    """Values of a table times the largest magnitude of their block of the flattened matrix."""

    name = "bitsandbytes"
    marker = "largest"
    optional = ("outer largest", "outer table", "state nf4", "state fp4")
    suffixes: ClassVar[Mapping[str, str]] = {
        "codes": ".weight",
        "largest": ".weight.absmax",
        "table": ".weight.quant_map",
        "outer largest": ".weight.nested_absmax",
        "outer table": ".weight.nested_quant_map",
        "state nf4": ".weight.quant_state.bitsandbytes__nf4",
        "state fp4": ".weight.quant_state.bitsandbytes__fp4",
    }

    def layout(self, parts: Parts, columns: int) -> Layout:
        values = 2 * prod(parts["codes"].shape) * parts["codes"].format.block_bytes
        rows, rest = divmod(values, columns)
        blocks = prod(parts["largest"].shape)
        if rest or not blocks or values % blocks:
            raise Misfit("codes", f"has {values} values in {blocks} blocks, not rows of {columns}")
        require(parts, "codes", ("U8", "BF16", "F16", "F32"))
        require(parts, "table", ("F32",), (16,))
        is_nested = "outer largest" in parts
        require(parts, "largest", ("U8",) if is_nested else ("F32",))
        group = values // blocks
        size = group_size(group, columns) if "state nf4" in parts else None
        return Layout(rows, 4, group, FORMATS["F32" if size is None else f"NF4_{size}"])


@dataclass(frozen=True)
class RowInts(WeightScheme):
    """A weight is code * largest / 127, with the largest magnitude of its row."""

    name = "bitsandbytes"
    suffixes: ClassVar[Mapping[str, str]] = {
        "codes": ".weight",
        "largest": ".SCB",
        "form": ".weight_format",
    }
    marker = "largest"
    unused = ("form",)

    def layout(self, parts: Parts, columns: int) -> Layout:
        rows = rows_of(parts, "codes", columns)
        require(parts, "codes", ("I8",))
        require(parts, "largest", ("F32",), (rows,))
        format = affine_format(8, columns, columns, FORMATS["F32"], is_symmetric=True)
        return Layout(rows, 8, columns, format)


def read_bitsandbytes(config: Config) -> Quantization:
    return Quantization((TableCodes(), RowInts()))

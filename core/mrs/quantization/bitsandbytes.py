"""bitsandbytes: 4 bits that index a table (nf4, fp4), or 8 bits with a scale for each row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, prod
from typing import TYPE_CHECKING, ClassVar

from mrs.config.config import Config
from mrs.errors import NotReadable
from mrs.formats import FORMATS
from mrs.quantization.affine import affine_format, group_size
from mrs.weights.weight_scheme import (
    Layout,
    Misfit,
    PartReader,
    Parts,
    Quantization,
    WeightScheme,
    require,
    rows_of,
)

if TYPE_CHECKING:
    from torch import Tensor


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

    def unpack(self, layout: Layout, parts: PartReader, rows: range, columns: int) -> Tensor:
        """NF4, or values in float32; the first of two codes in a byte is the high nibble."""
        import torch

        from mrs.quantization.gguf.bits import bytes_of
        from mrs.quantization.gguf.grouped import NF4_VALUES, nf4_blocks

        first, last = rows.start * columns, rows.stop * columns
        packed = parts.bytes("codes", range(first // 2, -(-last // 2)))
        codes = torch.stack((packed >> 4, packed & 15), -1).flatten()[first % 2 :][: last - first]
        blocks = range(first // layout.group, -(-last // layout.group))
        largest = _largest(parts, blocks)
        block = layout.format.block_elements
        scales = largest[torch.arange(first, last, block) // layout.group - blocks.start]
        table = parts.floats("table")
        if layout.format.name == "F32":
            return bytes_of((table[codes.long()] * scales).view(len(rows), columns))
        if not torch.equal(table, torch.tensor(NF4_VALUES)):
            raise NotReadable(f"the tensor {parts.name('table')!r} is not the table of nf4")
        return nf4_blocks(codes.view(-1, block), scales).view(len(rows), -1)


def _largest(parts: PartReader, blocks: range) -> Tensor:
    """The largest magnitudes of some blocks, float32."""
    import torch

    stored = parts.rows("largest", blocks, 1).flatten()
    if "outer largest" not in parts:
        return stored.float()
    size, offset = _nesting(parts)
    outer = parts.floats("outer largest").flatten()
    index = torch.arange(blocks.start, blocks.stop) // size
    if int(index[-1]) >= len(outer):
        raise NotReadable(f"the tensor {parts.name('outer largest')!r} is too short")
    return parts.floats("outer table")[stored.long()] * outer[index] + offset


def _nesting(parts: PartReader) -> tuple[int, float]:
    """Blocks of an outer block, and the offset of the magnitudes."""
    role = next((role for role in ("state nf4", "state fp4") if role in parts), None)
    try:
        state = json.loads(bytes(parts.whole(role or "").tolist()))
        size, offset = int(state.get("nested_blocksize", 256)), float(state["nested_offset"])
        if size < 1 or not isfinite(offset):
            raise ValueError
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise NotReadable(
            f"{parts.name('largest')!r} has no readable quantization state"
        ) from error
    return size, offset


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

    def unpack(self, layout: Layout, parts: PartReader, rows: range, columns: int) -> Tensor:
        import torch

        from mrs.quantization.gguf.affine_blocks import affine_blocks

        codes = parts.rows("codes", rows).view(torch.uint8) ^ 0x80
        scales = parts.rows("largest", rows, 1).float() / 127
        return affine_blocks(layout, codes, scales, zeros=torch.full_like(scales, 128))


def read_bitsandbytes(config: Config) -> Quantization:
    return Quantization((TableCodes(), RowInts()))

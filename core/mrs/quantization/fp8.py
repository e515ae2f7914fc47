"""8-bit floats (F8_E4M3) with a scale for the tensor, for each row, or for each tile."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mrs.config.config import Config
from mrs.errors import Unsupported
from mrs.formats import FORMATS
from mrs.quantization.affine import FLOATS, group_size
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


@dataclass(frozen=True)
class Fp8(WeightScheme):
    """A weight is scale * value. `tile` is (rows, columns) of a scale, if scales are by tile."""

    name = "FP8"
    suffixes: ClassVar[Mapping[str, str]] = {
        "codes": "",
        "scales": "_scale_inv",
        "input": ".activation_scale",
    }
    marker = "scales"
    unused: ClassVar[Collection[str]] = ("input",)

    tile: tuple[int, int] | None

    def layout(self, parts: Parts, columns: int) -> Layout:
        rows = rows_of(parts, "codes", columns)
        require(parts, "codes", ("F8_E4M3",))
        require(parts, "scales", FLOATS)
        group = self._group(parts, rows, columns)
        size = group_size(group, columns)
        return Layout(rows, 8, group, FORMATS["F32" if size is None else f"FP8_{size}"])

    def unpack(self, layout: Layout, parts: PartReader, rows: range, columns: int) -> Tensor:
        import torch

        from mrs.quantization.gguf.affine_blocks import scale_rows
        from mrs.quantization.gguf.bits import bytes_of
        from mrs.quantization.gguf.grouped import fp8_blocks

        codes = parts.rows("codes", rows)
        if self.tile is None:
            scales = scale_rows(parts, layout, rows)
        else:
            height = self.tile[0]
            tiles = range(rows.start // height, -(-rows.stop // height))
            by_row = torch.arange(rows.start, rows.stop) // height - tiles.start
            scales = parts.rows("scales", tiles).float()[by_row]
        block = layout.format.block_elements
        scales = scales[:, torch.arange(0, columns, block) // layout.group]
        if not layout.format.is_quantized:
            return bytes_of(codes.view(torch.float8_e4m3fn).float() * scales)
        return fp8_blocks(codes.reshape(-1, block), scales.reshape(-1)).view(len(rows), -1)

    def _group(self, parts: Parts, rows: int, columns: int) -> int:
        """Columns of a scale."""
        shape = parts["scales"].shape
        if self.tile is None:
            require(parts, "scales", FLOATS, (rows, 1), (rows,), (1,), (), (1, 1))
            return columns
        tiles = tuple(-(-n // size) for n, size in zip((rows, columns), self.tile, strict=True))
        if len(shape) < 2 or matrix_shape(parts, "scales") != tiles:
            raise Misfit("scales", f"has shape {list(shape)}, expected {list(tiles)}")
        return self.tile[1]


class ScaledFp8(Fp8):
    """The same, as other programs name the scales."""

    name = "FP8"
    suffixes: ClassVar[Mapping[str, str]] = {
        "codes": ".weight",
        "scales": ".weight_scale",
        "input": ".input_scale",
        "bound": ".input_scale_ub",
    }
    marker = "scales"
    unused = ("input", "bound")


def read_fp8(config: Config) -> Quantization:
    config.allow_only("fmt", "e4m3")
    config.allow_only("scale_fmt", "float")
    config.allow_only("expert_dtype", "fp8")
    return Quantization((Fp8(_tile(config)),))


def read_fbgemm(config: Config) -> Quantization:
    return Quantization((ScaledFp8(None),))


def read_modelopt(config: Config) -> Quantization:
    algorithm = config.text("quant_algo", "FP8")
    if algorithm != "FP8":
        raise Unsupported(
            f"the quantization modelopt with {algorithm} is not supported", where=config.where
        )
    return read_fbgemm(config)


def _tile(config: Config) -> tuple[int, int] | None:
    if not config.has("weight_block_size"):
        return None
    rows, columns = (int(n) for n in config.numbers("weight_block_size", 2, above=0))
    return rows, columns

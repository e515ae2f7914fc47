"""Weights that safetensors files keep in few bits, with their scales in tensors beside them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mrs.architecture.binding import Parameter, Piece, Scales
from mrs.architecture.config import Config
from mrs.errors import Unsupported


@dataclass(frozen=True)
class Quantization:
    """How a checkpoint's numbers are stored.

    Where a tensor of a name has scales, the file has it under its name and `numbers`, and the
    scales, one for each `tile` of numbers, under its name and `scales`.
    """

    numbers: str
    scales: str
    tile: tuple[int, int]


def read_quantization(config: Config) -> Quantization | None:
    """The scheme that `quantization_config` names; Unsupported for one that cannot be decoded."""
    if not config.has("quantization_config"):
        return None
    inner = Config(config.mapping("quantization_config"), config.where)
    method = inner.values.get("quant_method")
    if method == "mxfp4":
        return Quantization("_blocks", "_scales", (1, 32))
    if method != "fp8":
        raise Unsupported(f"the quantization {method!r} is not supported", where=config.where)
    inner.refuse("fmt", "e4m3")
    tile = inner.values.get("weight_block_size")
    if tile != [128, 128]:
        raise Unsupported(
            f"fp8 with weight_block_size = {tile!r} is not supported", where=config.where
        )
    return Quantization("", "_scale_inv", (128, 128))


def with_scales(
    parameters: list[Parameter], quantization: Quantization, tensors: Collection[str]
) -> list[Parameter]:
    """The same parameters, those that the file has scales for read with them."""

    def scaled(piece: Piece) -> Piece:
        scales = piece.tensor + quantization.scales
        if scales not in tensors:
            return piece
        tensor = piece.tensor + quantization.numbers
        # Blocks lie along the columns, whichever way the plain tensor has them.
        return Piece(tensor, piece.rows, piece.transform, scales=Scales(scales, quantization.tile))

    return [p._replace(pieces=tuple(map(scaled, p.pieces))) for p in parameters]

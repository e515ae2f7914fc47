"""Quantized weights in safetensors files: values and scales in separate tensors."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mrs.architecture.binding import Parameter, Piece, Scales
from mrs.architecture.config import Config
from mrs.errors import Unsupported


@dataclass(frozen=True)
class Quantization:
    """How the names of a checkpoint's quantized tensors are formed.

    A quantized weight `name` is stored as the tensors `name + values_suffix` and
    `name + scales_suffix`, with one scale for each `tile` (rows, columns) of values.
    """

    values_suffix: str
    scales_suffix: str
    tile: tuple[int, int]


def read_quantization(config: Config) -> Quantization | None:
    """The scheme in `quantization_config`, if there is one; Unsupported if it cannot be decoded."""
    if not config.has("quantization_config"):
        return None
    inner = Config(config.mapping("quantization_config"), config.where)
    method = inner.values.get("quant_method")
    if method == "mxfp4":
        return Quantization("_blocks", "_scales", (1, 32))
    if method != "fp8":
        raise Unsupported(f"the quantization {method!r} is not supported", where=config.where)
    inner.allow_only("fmt", "e4m3")
    tile = inner.values.get("weight_block_size")
    if tile != [128, 128]:
        raise Unsupported(
            f"fp8 with weight_block_size = {tile!r} is not supported",
            where=config.where,
            hint="only [128, 128] is supported",
        )
    return Quantization("", "_scale_inv", (128, 128))


def with_scales(
    parameters: list[Parameter], quantization: Quantization, tensors: Collection[str]
) -> list[Parameter]:
    """The same parameters, with scales for every piece that `tensors` has scales for."""

    def scaled(piece: Piece) -> Piece:
        scales = piece.tensor + quantization.scales_suffix
        if scales not in tensors:
            return piece
        tensor = piece.tensor + quantization.values_suffix
        # Quantized tensors are never transposed: their blocks lie along the columns.
        return Piece(tensor, piece.rows, piece.transform, scales=Scales(scales, quantization.tile))

    return [p._replace(pieces=tuple(map(scaled, p.pieces))) for p in parameters]

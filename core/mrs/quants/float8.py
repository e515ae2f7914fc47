"""8-bit floats with a scale per tile of a matrix, as DeepSeek's safetensors store them."""

from __future__ import annotations

import torch


def decode_float8_tiles(
    weights: torch.Tensor,
    scales: torch.Tensor,
    tile: tuple[int, int] = (128, 128),
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """`weight * weight_scale_inv`, tile by tile.

    `weights` is float8 (rows, columns), `scales` float (ceil(rows / tile rows),
    ceil(columns / tile columns)): the last tiles may be incomplete. The product is computed in
    float32. Raises ValueError if the shapes do not match.
    """
    rows, columns = weights.shape
    tile_rows, tile_columns = tile
    if scales.shape != (-(-rows // tile_rows), -(-columns // tile_columns)):
        raise ValueError(f"scales {tuple(scales.shape)} do not tile weights {(rows, columns)}")
    decoded = torch.empty(rows, columns, dtype=dtype, device=weights.device)
    for index, row_scales in enumerate(scales.float()):
        span = slice(index * tile_rows, min((index + 1) * tile_rows, rows))
        factors = row_scales.repeat_interleave(tile_columns)[:columns]
        decoded[span] = weights[span].float() * factors
    return decoded

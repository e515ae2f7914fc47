"""Quantize weights natively, where the library is there."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mrs.kernels.library import native_library
from mrs.kernels.packed import PACKED_FORMATS

#: Formats that the library encodes, and the bytes that 256 weights take.
_BLOCK_BYTES = {"Q2_K": 84, "Q3_K": 110, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210}
_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def native_encoder(format_name: str) -> Callable[[Tensor], Tensor] | None:
    """A function from weights (N, 256) in CPU memory to blocks (N, block_bytes), uint8.

    None where the library or the format is missing. It runs in the calling thread, and others
    run meanwhile. The library searches as `mrs.quants.k_search` does; summing in another order,
    it may decide otherwise where two choices are equally good.
    """
    library = native_library() if format_name in _BLOCK_BYTES else None
    if library is None:
        return None
    number = PACKED_FORMATS.index(format_name)

    def encode(weights: Tensor) -> Tensor:
        if weights.dtype not in _TYPES:
            weights = weights.float()
        weights = weights.contiguous()
        count = weights.shape[0]
        blocks = torch.empty(count, _BLOCK_BYTES[format_name], dtype=torch.uint8)
        library.functions.mrs_encode(
            library.path_address,
            number,
            weights.data_ptr(),
            _TYPES[weights.dtype],
            count,
            blocks.data_ptr(),
        )
        return blocks

    return encode

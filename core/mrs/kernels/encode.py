"""Quantize weights natively, where the library is there."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mrs.kernels.library import native_library
from mrs.sizes.packed import PACKED_FORMATS

_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def native_encoder(format_name: str) -> Callable[[Tensor, Tensor], None] | None:
    """A function that quantizes numbers (N, block_elements) into blocks (N, block_bytes), uint8.

    Both lie in CPU memory and the blocks are contiguous. None without the library or for formats
    that it does not encode. The library searches k-quants as `mrs.quants.k_search` does; summing in another order, it may
    decide otherwise where two choices are equally good.
    """
    library = native_library() if format_name.startswith("Q") else None
    if library is None or format_name not in PACKED_FORMATS:
        return None
    number = PACKED_FORMATS.index(format_name)

    def encode(numbers: Tensor, blocks: Tensor) -> None:
        numbers = (numbers if numbers.dtype in _TYPES else numbers.float()).contiguous()
        library.functions.mrs_encode(
            library.path_address,
            number,
            numbers.data_ptr(),
            _TYPES[numbers.dtype],
            numbers.shape[0],
            blocks.data_ptr(),
            torch.get_num_threads(),
        )

    return encode

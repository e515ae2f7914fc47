"""Quantization of weights by the native library."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mrs.formats import FORMATS
from mrs.kernels.cpu.library import native_library
from mrs.kernels.packed_layout import PACKED_FORMATS

_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def native_encoder(
    format_name: str, importance: Tensor | None = None
) -> Callable[[Tensor, Tensor], None] | None:
    """A function that quantizes values (N, block_elements) to blocks (N, block_bytes), uint8.

    Both are in CPU memory, and the blocks are contiguous. If the `importance` of columns (C,) is
    given, float32, values are whole rows of C. None without the library, or for a
    format that it does not encode. The search for k-quants is that of
    `mrs.quantization.gguf.k_search`, but sums in another order: it may choose differently between
    equally good candidates.
    """
    library = native_library() if format_name.startswith("Q") else None
    if library is None or format_name not in PACKED_FORMATS:
        return None
    format_code = PACKED_FORMATS.index(format_name)
    block_bytes = FORMATS[format_name].block_bytes

    def encode(values: Tensor, blocks: Tensor) -> None:
        values = (values if values.dtype in _TYPES else values.float()).contiguous()
        library.functions.mrs_encode(
            library.path_address,
            format_code,
            values.data_ptr(),
            _TYPES[values.dtype],
            blocks.nbytes // block_bytes,
            importance.data_ptr() if importance is not None else None,
            len(importance) if importance is not None else 0,
            blocks.data_ptr(),
            torch.get_num_threads(),
        )

    return encode

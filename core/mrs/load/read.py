"""Turn a tensor's bytes in a file into numbers on a device."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from mrs.formats import Format
from mrs.quants import decode
from mrs.source.checkpoint import TensorInfo
from mrs.source.weights import Weights

#: How torch spells the plain formats.
TORCH_DTYPES: dict[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
}


def file_rows(files: Weights, info: TensorInfo, rows: tuple[int, int] | None) -> Tensor:
    """Rows of a tensor as they lie in the file: uint8 (rows, row_bytes), read-only, no copy."""
    with warnings.catch_warnings():
        # torch warns that the mapping is read-only; nothing here writes to it.
        warnings.simplefilter("ignore", UserWarning)
        data = torch.frombuffer(files.tensor_bytes(info), dtype=torch.uint8)
    table = data.view(info.shape[0] if info.shape else 1, -1)
    return table if rows is None else table[rows[0] : rows[1]]


def fill(target: Tensor, data: Tensor, stored: Format) -> None:
    """Write rows of `stored` bytes (R, row_bytes) into target (R, …) of any dtype and device."""
    # A cast that changes nothing costs nothing: `decode` then returns a view of the file.
    target.copy_(decode(_aligned(data, stored), stored, target.dtype).view(target.shape))


def _aligned(data: Tensor, stored: Format) -> Tensor:
    """torch views bytes as numbers only where numbers may start; others are copied first."""
    is_plain = not stored.is_quantized
    return data.clone() if is_plain and data.data_ptr() % stored.block_bytes else data

"""A tensor's bytes as they lie in a file, row by row."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from mrs.source.checkpoint import TensorInfo
from mrs.source.weights import Weights

#: How torch spells the plain formats.
TORCH_DTYPES: dict[str, torch.dtype] = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
}


def file_rows(files: Weights, info: TensorInfo, columns: int, rows: range | None) -> Tensor:
    """Rows of `columns` numbers as they lie in the file: uint8 (rows, row_bytes), read-only.

    Nothing is copied, unless numbers start where torch cannot view them as numbers.
    """
    with warnings.catch_warnings():
        # torch warns that the mapping is read-only; nothing here writes to it.
        warnings.simplefilter("ignore", UserWarning)
        data = torch.frombuffer(files.tensor_bytes(info), dtype=torch.uint8)
    table = data.view(-1, info.format.size_bytes((columns,)))
    some = table if rows is None else table[rows.start : rows.stop : rows.step]
    is_plain = not info.format.is_quantized
    return some.clone() if is_plain and some.data_ptr() % info.format.block_bytes else some

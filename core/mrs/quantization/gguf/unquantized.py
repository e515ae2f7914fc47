"""Unquantized formats: floats, 8-bit floats and integers."""

from __future__ import annotations

import torch

#: The torch dtype of each format.
DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def view_values(rows: torch.Tensor, format_name: str) -> torch.Tensor:
    """Bytes (..., row_bytes) as values (..., row_elements); a view if alignment allows it."""
    dtype = DTYPES[format_name]
    if not rows.is_contiguous() or rows.data_ptr() % dtype.itemsize:
        rows = rows.clone(memory_format=torch.contiguous_format)
    return rows.view(dtype)

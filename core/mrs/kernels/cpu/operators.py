"""The packed product as a torch operator, for programs that trace or export a model.

`PackedMatrix.matmul` calls the library directly: going through torch's dispatcher costs several
times as much as the call itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.kernels.cpu.packed import PackedMatrix


@torch.library.custom_op("mrs::packed_matmul", mutates_args=(), device_types="cpu")
def packed_matmul(x: Tensor, packed: Tensor, format_name: str, rows: int) -> Tensor:
    """x (N, columns) times the transposed weight whose bytes are `packed`: (N, rows)."""
    return PackedMatrix.wrap(packed, format_name, rows, x.shape[1]).matmul(x)


@packed_matmul.register_fake
def _(x: Tensor, packed: Tensor, format_name: str, rows: int) -> Tensor:
    return x.new_empty(x.shape[0], rows)

"""Native products with matrices that are stored as rows of floats or halves."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from mrs.kernels import c_structs
from mrs.kernels.cpu.library import NativeLibrary
from mrs.kernels.native_structs import CACHE_TYPES


def can_multiply(x: Tensor, weights: Tensor) -> bool:
    """Whether `multiply` supports these types and strides."""
    return (
        x.stride(-1) == 1
        and weights.is_cpu
        and weights.dtype in CACHE_TYPES
        and 1 in weights.stride()[1:]
    )


def multiply(library: NativeLibrary, x: Tensor, weights: Tensor) -> Tensor:
    """x (N, H, C) times the transposed weights (H, R, C) of each head: (N, H, R)."""
    tokens, heads, depth = x.shape
    rows = weights.shape[1]
    out = torch.empty(tokens, heads, rows)
    product = c_structs.DenseProduct(
        x.data_ptr(),
        weights.data_ptr(),
        out.data_ptr(),
        CACHE_TYPES[weights.dtype],
        *(tokens, heads, depth, rows),
        *x.stride()[:2],
        *weights.stride(),
    )
    library.functions.mrs_multiply_dense(
        library.path_address, ctypes.addressof(product), torch.get_num_threads()
    )
    return out

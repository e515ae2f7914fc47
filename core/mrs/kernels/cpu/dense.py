"""Native products with matrices that are stored as rows of floats or halves."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from mrs.kernels.cpu.library import NativeLibrary
from mrs.kernels.native_structs import CACHE_TYPES


class _DenseStruct(ctypes.Structure):
    """The C struct of the same fields in native/dense/dense.h."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("type", ctypes.c_int64),
        ("tokens", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("depth", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("x_token_step", ctypes.c_int64),
        ("x_head_step", ctypes.c_int64),
        ("head_step", ctypes.c_int64),
        ("row_step", ctypes.c_int64),
        ("depth_step", ctypes.c_int64),
    )


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
    product = _DenseStruct(
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

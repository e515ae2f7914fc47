"""C structs through which a paged KV cache and a batch are passed to the native library."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

#: The library's codes for the types of a cache.
CACHE_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class NativeTensor(ctypes.Structure):
    """Keys or values of one layer: a C struct of native/attention/attention.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dim", ctypes.c_int64),
        ("block_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("token_stride", ctypes.c_int64),
    )

    @classmethod
    def of(cls, x: Tensor) -> NativeTensor:
        """x (blocks, KV, block tokens, D), contiguous in the last dimension."""
        return cls(x.data_ptr(), x.shape[3], x.stride(0), x.stride(1), x.stride(2))


class NativeKV(ctypes.Structure):
    """The cache of one layer: a C struct of native/attention/attention.h.

    It has only addresses: the caller keeps the tensors alive.
    """

    _fields_ = (
        ("keys", NativeTensor),
        ("values", NativeTensor),
        ("type", ctypes.c_int64),
        ("block_shift", ctypes.c_int64),
    )

    @classmethod
    def of(cls, keys: Tensor, values: Tensor, block_shift: int) -> NativeKV:
        """`keys` and `values` (blocks, KV, 1 << block_shift, D) of one type."""
        return cls(
            NativeTensor.of(keys), NativeTensor.of(values), CACHE_TYPES[keys.dtype], block_shift
        )


class NativeBatch(ctypes.Structure):
    """The new tokens of some sequences: a C struct of native/attention/attention.h."""

    _fields_ = (
        ("sequences", ctypes.c_int64),
        ("table_blocks", ctypes.c_int64),
        ("tokens", ctypes.c_int64),
        ("query_start", ctypes.c_void_p),
        ("context_lens", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("slot_mapping", ctypes.c_void_p),
        ("attention_ends", ctypes.c_void_p),
    )

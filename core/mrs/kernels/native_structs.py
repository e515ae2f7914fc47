"""The values that a paged KV cache and a batch pass to the native library."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

#: How the library calls the types of a cache.
CACHE_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class NativeTensor(ctypes.Structure):
    """Keys or values, as native/steps.h describes them."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dim", ctypes.c_int64),
        ("block_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("token_stride", ctypes.c_int64),
    )

    @classmethod
    def of(cls, x: Tensor) -> NativeTensor:
        """x (blocks, KV, block tokens, D), a token's numbers next to each other."""
        return cls(x.data_ptr(), x.shape[3], x.stride(0), x.stride(1), x.stride(2))


class NativeKV(ctypes.Structure):
    """A layer's cache, as native/steps.h describes it; whoever makes one keeps its tensors."""

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
    """The new tokens of some sequences, as native/steps.h describes them."""

    _fields_ = (
        ("sequences", ctypes.c_int64),
        ("tokens", ctypes.c_int64),
        ("table_blocks", ctypes.c_int64),
        ("query_start", ctypes.c_void_p),
        ("context_lens", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("slot_mapping", ctypes.c_void_p),
        ("attention_ends", ctypes.c_void_p),
    )

"""A cache of keys and values as the native library sees it."""

from __future__ import annotations

import ctypes

from torch import Tensor

from mrs.kernels.steps import CACHE_TYPES


class CachedTokens(ctypes.Structure):
    """As native/layer.h describes it; whoever makes one keeps its tensors."""

    _fields_ = (
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("type", ctypes.c_int64),
        ("capacity", ctypes.c_int64),
        ("length", ctypes.c_int64),
    )

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> CachedTokens:
        """Contiguous `keys` and `values` (KV, capacity, D), of which no token counts yet."""
        kind = CACHE_TYPES[keys.dtype]
        return cls(keys.data_ptr(), values.data_ptr(), kind, keys.shape[1], 0)

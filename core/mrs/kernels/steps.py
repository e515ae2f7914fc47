"""The small steps between matrix products, by the native library.

Each function takes float32 tensors in CPU memory and the library; the modules of the kernels
choose between these and torch, so nobody else needs to call them.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from mrs.kernels.library import NativeLibrary, native_library
from mrs.sizes.attention import is_native
from mrs.sizes.fused_layer import ACTIVATIONS

#: How the library calls activations.
ACTIVATION_NUMBERS = {name: number for number, name in enumerate(ACTIVATIONS)}

#: How the library calls the types of a cache.
CACHE_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

#: A block of more tokens than there can be.
_ONE_BLOCK_SHIFT = 62


class _Cached(ctypes.Structure):
    """Keys or values, as native/steps.h describes them."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dim", ctypes.c_int64),
        ("block_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("token_stride", ctypes.c_int64),
    )

    @classmethod
    def of(cls, x: Tensor) -> _Cached:
        """x (blocks, KV, block tokens, D), a token's numbers next to each other."""
        return cls(x.data_ptr(), x.shape[3], x.stride(0), x.stride(1), x.stride(2))


class NativeKV(ctypes.Structure):
    """A layer's cache, as native/steps.h describes it; whoever makes one keeps its tensors."""

    _fields_ = (
        ("keys", _Cached),
        ("values", _Cached),
        ("type", ctypes.c_int64),
        ("block_shift", ctypes.c_int64),
    )

    @classmethod
    def of(cls, keys: Tensor, values: Tensor, block_shift: int) -> NativeKV:
        """`keys` and `values` (blocks, KV, 1 << block_shift, D) of one type."""
        return cls(_Cached.of(keys), _Cached.of(values), CACHE_TYPES[keys.dtype], block_shift)


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


class _Attending(ctypes.Structure):
    """Attention of new tokens, as native/steps.h describes it."""

    _fields_ = (
        ("q", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("cache", ctypes.c_void_p),
        ("batch", ctypes.c_void_p),
        ("sinks", ctypes.c_void_p),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("scale", ctypes.c_double),
        ("softcap", ctypes.c_double),
    )


def library_for(x: Tensor) -> NativeLibrary | None:
    """The library, if it computes with tensors like x."""
    return native_library() if x.is_cpu and x.dtype is torch.float32 else None


def rms_norm(library: NativeLibrary, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    size = x.shape[-1]
    library.functions.mrs_rms_norm(
        library.path_address,
        x.data_ptr(),
        weight.data_ptr(),
        eps,
        x.numel() // size,
        size,
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out


def gate(library: NativeLibrary, activation: str, gate: Tensor, up: Tensor) -> Tensor:
    """activation(gate) * up, written over `gate`; both contiguous and of one shape."""
    library.functions.mrs_gate(
        library.path_address,
        ACTIVATION_NUMBERS[activation],
        gate.data_ptr(),
        up.data_ptr(),
        gate.numel(),
        torch.get_num_threads(),
    )
    return gate


def rotate(
    library: NativeLibrary, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> Tensor:
    """x (T, H, D), cos and sin (T, P)."""
    x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
    out = torch.empty_like(x)
    library.functions.mrs_rotate(
        library.path_address,
        x.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        *x.shape,
        cos.shape[-1],
        interleaved,
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return out


def can_attend(k: Tensor, v: Tensor) -> bool:
    """Whether `attend` takes keys and values (…, D) of these sizes, types and layouts."""
    return (
        k.dtype in CACHE_TYPES
        and v.dtype is k.dtype
        and k.is_cpu
        and all(is_native(cached.shape[-1]) and cached.stride(-1) == 1 for cached in (k, v))
    )


def attend(
    library: NativeLibrary,
    q: Tensor,
    cache: NativeKV,
    batch: NativeBatch,
    kv_heads: int,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention of a batch's new tokens: q (N, H, D) to (N, H * Dv)."""
    q = q.contiguous()
    sinks = None if sinks is None else sinks.float()
    out = torch.empty(q.shape[0], q.shape[1] * cache.values.dim)
    attending = _Attending(
        q.data_ptr(),
        out.data_ptr(),
        ctypes.addressof(cache),
        ctypes.addressof(batch),
        None if sinks is None else sinks.data_ptr(),
        q.shape[1],
        kv_heads,
        window or 0,
        scale,
        softcap or 0.0,
    )
    address = ctypes.addressof(attending)
    if not library.functions.mrs_attend(library.path_address, address, torch.get_num_threads()):
        raise MemoryError("no memory for attention")
    return out


def attend_one(library: NativeLibrary, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention of one query (1, H, D) to all keys (KV, S, D) and values: to (1, H * Dv)."""
    cache = NativeKV.of(k[None], v[None], _ONE_BLOCK_SHIFT)
    bounds = torch.tensor([0, 1, k.shape[1], 0], dtype=torch.int32)
    start, context, table = (bounds[first:].data_ptr() for first in (0, 2, 3))
    batch = NativeBatch(1, 1, 1, start, context, table, None, None)
    kv_heads = k.shape[0]
    return attend(
        library, q, cache, batch, kv_heads, scale=scale, window=None, softcap=None, sinks=None
    )


def write_kv(
    library: NativeLibrary, cache: NativeKV, batch: NativeBatch, k: Tensor, v: Tensor | None
) -> None:
    """Write keys (N, KV, D) and values, unless they are a part of the keys, to the slots."""
    k, v = k.contiguous(), None if v is None else v.contiguous()
    library.functions.mrs_write_kv(
        ctypes.addressof(cache),
        ctypes.addressof(batch),
        k.data_ptr(),
        None if v is None else v.data_ptr(),
        k.shape[1],
        torch.get_num_threads(),
    )

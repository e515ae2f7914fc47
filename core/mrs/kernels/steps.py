"""The small steps between matrix products, by the native library.

Each function takes float32 tensors in CPU memory and the library; the modules of the kernels
choose between these and torch, so nobody else needs to call them.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from mrs.kernels.library import NativeLibrary, native_library

#: Activations that the library computes together with the product that follows them.
ACTIVATION_NUMBERS = {"silu": 0, "gelu_tanh": 1}

#: How the library calls the types of a cache.
CACHE_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

#: The head size must be a multiple of this: the widest vectors hold so many numbers.
LANES = 16


class _Attending(ctypes.Structure):
    """Attention of new tokens, as native/steps.h describes it."""

    _fields_ = (
        ("q", ctypes.c_void_p),
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("sinks", ctypes.c_void_p),
        ("type", ctypes.c_int64),
        ("tokens", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("keys", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("key_dim", ctypes.c_int64),
        ("value_dim", ctypes.c_int64),
        ("k_stride", ctypes.c_int64),
        ("v_stride", ctypes.c_int64),
        ("scale", ctypes.c_double),
        ("softcap", ctypes.c_double),
        ("last_seen", ctypes.c_void_p),
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


def can_attend(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether `attend` takes q (T, H, D) and the cache's k and v (KV, S, D)."""
    return (
        k.dtype in CACHE_TYPES
        and v.dtype is k.dtype
        and all(
            cached.shape[2] % LANES == 0
            and cached.stride(2) == 1
            and cached.stride(1) == cached.shape[2]
            for cached in (k, v)
        )
    )


def attend(
    library: NativeLibrary,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    last_seen: Tensor | None,
) -> Tensor:
    """Attention of new tokens, (T, H * Dv)."""
    (tokens, heads, _), (kv_heads, keys, key_dim), value_dim = q.shape, k.shape, v.shape[2]
    q = q.contiguous()
    sinks = None if sinks is None else sinks.float()
    last_seen = None if last_seen is None else last_seen.to("cpu", torch.int64).contiguous()
    out = torch.empty(tokens, heads * value_dim)
    attending = _Attending(
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        out.data_ptr(),
        None if sinks is None else sinks.data_ptr(),
        CACHE_TYPES[k.dtype],
        tokens,
        heads,
        kv_heads,
        keys,
        window or 0,
        key_dim,
        value_dim,
        k.stride(0),
        v.stride(0),
        scale,
        softcap or 0.0,
        None if last_seen is None else last_seen.data_ptr(),
    )
    address = ctypes.addressof(attending)
    if not library.functions.mrs_attend(library.path_address, address, torch.get_num_threads()):
        raise MemoryError(f"no memory for attention over {keys} tokens")
    return out

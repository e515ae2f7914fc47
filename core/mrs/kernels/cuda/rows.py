"""What is computed of rows beside products: rotated heads on their way to the cache, and norms."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from mrs.kernels.cuda.cubins import Kernel
from mrs.kernels.cuda.launcher import THREADS, TYPES, Launcher
from mrs.kernels.paged import PagedKV

_HEADS_OF_BLOCK = THREADS // 32
#: How the sources name the types of caches.
_CACHE_TYPES = {**TYPES, torch.float8_e4m3fn: "Float8"}
_STRIDES = ctypes.c_longlong * 3


class RotationTask(ctypes.Structure):
    """`Rotation` of rotate.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("heads", "cos", "sin", "norms", "slots")),
        *((name, ctypes.c_void_p) for name in ("keys", "values", "queries")),
        ("key_strides", _STRIDES),
        ("value_strides", _STRIDES),
        *((name, ctypes.c_int) for name in ("query_heads", "kv_heads", "dim", "pairs")),
        ("block_tokens", ctypes.c_int),
        ("eps", ctypes.c_float),
        ("largest", ctypes.c_float),
    )


class NormTask(ctypes.Structure):
    """`Norm` of normalize.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "weight", "added", "out")),
        ("columns", ctypes.c_int),
        ("eps", ctypes.c_float),
    )


@dataclass(frozen=True)
class Heads:
    """The heads of a layer; `norms` (2, dim) float32 are the RMS norms of queries and keys."""

    heads: int
    kv_heads: int
    dim: int
    is_interleaved: bool
    norms: Tensor | None = None
    eps: float = 0.0


def can_write(kv: PagedKV) -> bool:
    """Whether `rotate_and_write` writes to such a cache."""
    return kv.keys.dtype in _CACHE_TYPES and kv.values.dtype == kv.keys.dtype


def rotate_and_write(
    qkv: Tensor,
    angles: tuple[Tensor, Tensor],
    shape: Heads,
    slots: Tensor,
    kv: PagedKV,
    launcher: Launcher,
) -> Tensor:
    """Queries (N, heads * dim) of qkv (N, all heads * dim); keys and values go to the cache.

    Queries and keys are normed, if they have norms, and rotated by cos and sin (N, pairs).
    """
    tokens, (cos, sin) = len(qkv), (each.contiguous() for each in angles)
    queries = torch.empty(tokens, shape.heads * shape.dim, dtype=qkv.dtype, device=qkv.device)
    slots = slots.long().contiguous()
    task = RotationTask(
        qkv.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        None if shape.norms is None else shape.norms.data_ptr(),
        slots.data_ptr(),
        kv.keys.data_ptr(),
        kv.values.data_ptr(),
        queries.data_ptr(),
        _STRIDES(*kv.keys.stride()[:3]),
        _STRIDES(*kv.values.stride()[:3]),
        shape.heads,
        shape.kv_heads,
        shape.dim,
        cos.shape[1],
        kv.block_tokens,
        shape.eps,
        torch.finfo(kv.keys.dtype).max,
    )
    kernel = rotate_kernel(
        qkv.dtype,
        kv.keys.dtype,
        has_norms=shape.norms is not None,
        is_interleaved=shape.is_interleaved,
    )
    blocks = -(-(shape.heads + 2 * shape.kv_heads) // _HEADS_OF_BLOCK)
    if tokens:
        launcher.launch(kernel, (blocks, tokens, 1), 0, task)
    return queries


def rotate_kernel(
    x: torch.dtype, cache: torch.dtype, *, has_norms: bool, is_interleaved: bool
) -> Kernel:
    return Kernel.of(
        "rotate",
        X=TYPES[x],
        CACHE=_CACHE_TYPES[cache],
        HAS_NORMS=has_norms,
        IS_INTERLEAVED=is_interleaved,
    )


def normalize(
    x: Tensor, weight: Tensor, eps: float, launcher: Launcher, added: Tensor | None = None
) -> Tensor:
    """The RMS norm of x (N, columns) with float32 weights (columns,), + added."""
    x, out = x.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    added = None if added is None else added.contiguous()
    task = NormTask(
        x.data_ptr(),
        weight.data_ptr(),
        None if added is None else added.data_ptr(),
        out.data_ptr(),
        x.shape[1],
        eps,
    )
    if len(x):
        launcher.launch(normalize_kernel(x.dtype), (len(x), 1, 1), 4 * _HEADS_OF_BLOCK, task)
    return out


def normalize_kernel(dtype: torch.dtype) -> Kernel:
    return Kernel.of("normalize", X=TYPES[dtype])

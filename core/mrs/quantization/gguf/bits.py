"""Bit fields of block layouts that several formats share.

Blocks are `uint8` tensors (N, block_bytes) on any device; ggml stores everything little-endian.
"""

from __future__ import annotations

import torch


def typed(field: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A byte field (N, bytes) as values (N, bytes // itemsize) of `dtype`.

    Copies, so that the field may start at any offset.
    """
    return field.clone(memory_format=torch.contiguous_format).view(dtype)


def half(field: torch.Tensor) -> torch.Tensor:
    """A field of float16 values as float32: (N, 2 * n) -> (N, n)."""
    return typed(field, torch.float16).float()


def steps(count: int, step: int, like: torch.Tensor) -> torch.Tensor:
    """`[0, step, 2 * step, …]` on the device and in the dtype of `like`."""
    return torch.arange(0, count * step, step, device=like.device, dtype=like.dtype)


def planes(packed: torch.Tensor, group: int, bits: int) -> torch.Tensor:
    """Unpack values of `bits` bits, group by group: (N, bytes) -> (N, bytes * 8 // bits), uint8.

    The values of a group of `group` bytes are the lowest `bits` bits of all its bytes in order,
    then the next `bits` bits of all its bytes, and so on.
    """
    count = 8 // bits
    groups = packed.reshape(len(packed), -1, 1, group)  # (N, groups, 1, group)
    shifted = groups >> steps(count, bits, packed).view(1, 1, count, 1)
    return (shifted & ((1 << bits) - 1)).reshape(len(packed), -1)


def fields(packed: torch.Tensor, count: int, bits: int) -> torch.Tensor:
    """Unpack `count` adjacent values of `bits` bits from each integer, lowest first.

    (N, n) -> (N, n * count) in the dtype of `packed`. Right shifts of signed types insert copies
    of the sign, which the mask removes.
    """
    shifted = packed.unsqueeze(-1) >> steps(count, bits, packed)
    return (shifted & ((1 << bits) - 1)).reshape(len(packed), -1)


def pack_planes(values: torch.Tensor, group: int, bits: int) -> torch.Tensor:
    """The inverse of `planes`: uint8 values (N, n), each below 2**bits -> (N, n * bits // 8)."""
    count = 8 // bits
    groups = values.reshape(len(values), -1, count, group)
    packed = groups[:, :, 0]
    for plane in range(1, count):
        packed = packed | (groups[:, :, plane] << (bits * plane))
    return packed.reshape(len(values), -1)


def bytes_of(values: torch.Tensor) -> torch.Tensor:
    """The bytes of values: (N, n) -> (N, n * itemsize)."""
    return values.contiguous().view(torch.uint8)

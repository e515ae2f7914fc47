"""Small pieces of block layouts that several families share.

Blocks are `uint8` tensors (N, block_bytes) on any device; ggml stores everything little-endian.
"""

from __future__ import annotations

import torch


def typed(field: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A byte field (N, bytes) as values (N, bytes // itemsize); a copy, so any offset works."""
    return field.clone(memory_format=torch.contiguous_format).view(dtype)


def half(field: torch.Tensor) -> torch.Tensor:
    """Two bytes a number, IEEE half, as float32: (N, 2 * n) -> (N, n)."""
    return typed(field, torch.float16).float()


def steps(count: int, step: int, like: torch.Tensor) -> torch.Tensor:
    """`[0, step, 2 * step, …]` on the device and in the dtype of `like`."""
    return torch.arange(0, count * step, step, device=like.device, dtype=like.dtype)


def planes(packed: torch.Tensor, group: int, bits: int) -> torch.Tensor:
    """Unpack bytes whose bit planes hold successive runs of `group` numbers.

    In each run of `group` bytes, the lowest `bits` bits of all bytes come first, then the next
    `bits` bits, and so on: (N, bytes) -> (N, bytes * 8 // bits), uint8.
    """
    count = 8 // bits
    runs = packed.reshape(len(packed), -1, 1, group)  # (N, runs, 1, group)
    shifted = runs >> steps(count, bits, packed).view(1, 1, count, 1)
    return (shifted & ((1 << bits) - 1)).reshape(len(packed), -1)


def fields(packed: torch.Tensor, count: int, bits: int) -> torch.Tensor:
    """Unpack `count` neighbours of `bits` bits from each integer, lowest first.

    (N, n) -> (N, n * count) in the dtype of `packed`; signed types shift in copies of the sign,
    which the mask drops again.
    """
    shifted = packed.unsqueeze(-1) >> steps(count, bits, packed)
    return (shifted & ((1 << bits) - 1)).reshape(len(packed), -1)


def pack_planes(numbers: torch.Tensor, group: int, bits: int) -> torch.Tensor:
    """The inverse of `planes`: uint8 numbers (N, n), each below 2**bits -> (N, n * bits // 8)."""
    count = 8 // bits
    runs = numbers.reshape(len(numbers), -1, count, group)
    packed = runs[:, :, 0]
    for plane in range(1, count):
        packed = packed | (runs[:, :, plane] << (bits * plane))
    return packed.reshape(len(numbers), -1)


def bytes_of(numbers: torch.Tensor) -> torch.Tensor:
    """The bytes of contiguous numbers (N, n) -> (N, n * itemsize)."""
    return numbers.contiguous().view(torch.uint8)

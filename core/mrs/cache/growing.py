"""Keys and values of every token, in one buffer that doubles when it is full."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import torch
from torch import Tensor

from mrs.interrupts import interrupts_held
from mrs.kernels.cached_tokens import CachedTokens


class GrowingCache:
    """Remembers everything; can be rewound to any earlier length.

    The buffers are (KV, capacity, D) and (KV, capacity, Dv): one head's tokens lie together, so
    attention reads them in order.
    """

    def __init__(
        self,
        kv_heads: int,
        key_dim: int,
        value_dim: int,
        *,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.length = 0
        self.device = device
        self._k = torch.empty(kv_heads, capacity, key_dim, dtype=dtype, device=device)
        self._v = torch.empty(kv_heads, capacity, value_dim, dtype=dtype, device=device)
        self._native: CachedTokens | None = None

    @property
    def nbytes(self) -> int:
        return self._k.nbytes + self._v.nbytes

    @property
    def capacity(self) -> int:
        return self._k.shape[1]

    @property
    def reach(self) -> None:
        return None

    @property
    def oldest(self) -> int:
        return 0

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        start, end = self.length, self.length + k.shape[1]
        self._reserve(end)
        self._k[:, start:end] = k
        self._v[:, start:end] = v
        self.length = end
        return self._k[:, :end], self._v[:, :end]

    def extend(self, tokens: int) -> int:
        self._reserve(self.length + tokens)
        self.length += tokens
        if self._native is None:
            self._native = CachedTokens.of(self._k, self._v)
        self._native.length = self.length
        return ctypes.addressof(self._native)

    def contents(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        return self._k[:, start:end], self._v[:, start:end]

    def fill(self, length: int, pieces: Iterable[tuple[Tensor, ...]]) -> None:
        self._reserve(length)
        for k, v in pieces:
            self.append(k, v)

    def _reserve(self, tokens: int) -> None:
        if tokens > self.capacity:
            self._move(slice(0, self.length), max(tokens, 2 * self.capacity))

    def _move(self, kept: slice, capacity: int) -> None:
        """Go on in new buffers with the tokens `kept`."""
        with interrupts_held():
            self._native = None
            self._k = _copied(self._k, kept, capacity)
            self._v = _copied(self._v, kept, capacity)

    def can_rewind_to(self, length: int) -> bool:
        return 0 <= length <= self.length

    def rewind(self, length: int) -> None:
        if not self.can_rewind_to(length):
            raise ValueError(f"cannot rewind {self.length} tokens to {length}")
        self.length = length

    def keep_last(self, count: int) -> int:
        """Drop all but the last `count` tokens; returns how many.

        What is kept moves to a new buffer, so that what `contents` gave stays as it is.
        """
        dropped = max(self.length - count, 0)
        self._move(slice(dropped, self.length), self.capacity)
        self.length -= dropped
        return dropped


def _copied(old: Tensor, kept: slice, capacity: int) -> Tensor:
    """A buffer of `capacity` tokens that begins with the tokens `kept` of another."""
    new = old.new_empty(old.shape[0], capacity, old.shape[2])
    new[:, : kept.stop - kept.start] = old[:, kept]
    return new

"""Keys and values of every token, in one buffer that doubles when it is full."""

from __future__ import annotations

import torch
from torch import Tensor


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

    @property
    def nbytes(self) -> int:
        return self._k.nbytes + self._v.nbytes

    @property
    def capacity(self) -> int:
        return self._k.shape[1]

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        end = self.length + k.shape[1]
        if end > self.capacity:
            grown = max(end, 2 * self.capacity)
            self._k, self._v = self._grow(self._k, grown), self._grow(self._v, grown)
        self._k[:, self.length : end] = k
        self._v[:, self.length : end] = v
        self.length = end
        return self._k[:, :end], self._v[:, :end]

    def _grow(self, old: Tensor, capacity: int) -> Tensor:
        new = old.new_empty(old.shape[0], capacity, old.shape[2])
        new[:, : self.length] = old[:, : self.length]
        return new

    def can_rewind_to(self, length: int) -> bool:
        return 0 <= length <= self.length

    def rewind(self, length: int) -> None:
        if not self.can_rewind_to(length):
            raise ValueError(f"cannot rewind {self.length} tokens to {length}")
        self.length = length

    def keep_last(self, count: int) -> int:
        """Move the last `count` tokens to the front and drop the others; returns how many."""
        dropped = max(self.length - count, 0)
        kept = self.length - dropped
        # Source and target may overlap, which an assignment between views does not allow.
        self._k[:, :kept] = self._k[:, dropped : self.length].clone()
        self._v[:, :kept] = self._v[:, dropped : self.length].clone()
        self.length = kept
        return dropped

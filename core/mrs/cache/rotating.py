"""Keys and values of the last `window` tokens, for sliding-window layers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from mrs.cache.growing import GrowingCache
from mrs.interrupts import interrupts_held


class RotatingCache:
    """Remembers the last `window` tokens and room for one chunk of new ones.

    Tokens stay in order: when the buffer of `window + chunk` cells is full, the last `window - 1`
    move to the front of a new one, which costs one copy of the window for every `chunk` tokens.
    Until it has rolled over it can be rewound anywhere; afterwards only back to tokens that it
    still holds with their whole window.
    """

    def __init__(
        self,
        kv_heads: int,
        key_dim: int,
        value_dim: int,
        *,
        window: int,
        chunk: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._window = window
        self._dropped = 0
        self._cells = GrowingCache(
            kv_heads, key_dim, value_dim, capacity=window + chunk, dtype=dtype, device=device
        )

    @property
    def length(self) -> int:
        return self._dropped + self._cells.length

    @property
    def nbytes(self) -> int:
        return self._cells.nbytes

    @property
    def device(self) -> torch.device:
        return self._cells.device

    @property
    def reach(self) -> int:
        return self._window - 1

    @property
    def oldest(self) -> int:
        return self._dropped

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        tokens = k.shape[1]
        self._roll_over(tokens)
        keys, values = self._cells.append(k, v)
        seen = min(self._cells.length, self._window - 1 + tokens)
        return keys[:, -seen:], values[:, -seen:]

    def extend(self, tokens: int) -> int:
        self._roll_over(tokens)
        return self._cells.extend(tokens)

    def _roll_over(self, tokens: int) -> None:
        """Make room for new tokens, if there is none, by dropping what none of them sees."""
        if self._cells.length + tokens > self._cells.capacity:
            with interrupts_held():
                self._dropped += self._cells.keep_last(self._window - 1)

    def contents(self, start: int, end: int) -> tuple[Tensor, Tensor]:
        return self._cells.contents(start - self._dropped, end - self._dropped)

    def fill(self, length: int, pieces: Iterable[tuple[Tensor, ...]]) -> None:
        self._cells.fill(self._cells.length, pieces)
        self._dropped = length - self._cells.length

    def can_rewind_to(self, length: int) -> bool:
        if not 0 <= length <= self.length:
            return False
        return (
            self._dropped == 0
            or length == self.length
            or (length - self._dropped >= self._window - 1)
        )

    def rewind(self, length: int) -> None:
        if not self.can_rewind_to(length):
            raise ValueError(f"cannot rewind {self.length} tokens to {length}: the window moved on")
        self._cells.rewind(length - self._dropped)

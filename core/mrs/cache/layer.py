"""The contract of one layer's memory of past tokens."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class LayerCache(Protocol):
    """What one layer remembers of one sequence."""

    @property
    def length(self) -> int:
        """Tokens seen so far."""

    @property
    def nbytes(self) -> int:
        """Bytes allocated on `device`."""

    @property
    def device(self) -> torch.device: ...

    def can_rewind_to(self, length: int) -> bool:
        """Whether the state after the first `length` tokens can be had again."""

    def rewind(self, length: int) -> None:
        """Forget everything after the first `length` tokens; ValueError if that is lost."""


class KeyValueCache(LayerCache, Protocol):
    """Memory of an attention layer: keys and values, oldest first."""

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add (KV, T, D) and (KV, T, Dv); returns all that the new tokens may look at.

        The result is (KV, S, D) and (KV, S, Dv) with the new tokens last, valid until the next
        call.
        """

"""The contract of one layer's memory of past tokens."""

from __future__ import annotations

from collections.abc import Iterable
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


@runtime_checkable
class TokenCache(LayerCache, Protocol):
    """A memory that holds something of each token, so that tokens can be taken out and put in.

    All tensors have tokens along dimension 1.
    """

    @property
    def reach(self) -> int | None:
        """How many of the last tokens the next one needs; None for all of them."""

    @property
    def oldest(self) -> int:
        """The first token that is still held; all after it are, too."""

    def contents(self, start: int, end: int) -> tuple[Tensor, ...]:
        """What is held of the tokens `start` to `end`, not before `oldest`.

        These are views. They stay as they are for as long as the cache is not rewound to before
        `end`, whatever is appended.
        """

    def fill(self, length: int, pieces: Iterable[tuple[Tensor, ...]]) -> None:
        """Make an empty cache one of `length` tokens, of which `pieces` holds the last.

        The pieces are what `contents` gave for adjacent stretches, at least `reach` tokens in all
        (or `length`); they are copied.
        """


@runtime_checkable
class StateCache(LayerCache, Protocol):
    """A memory that is one state, whatever the number of tokens: it can only be copied whole."""

    def snapshot(self) -> tuple[Tensor, ...]:
        """A copy of the state."""

    def restore(self, length: int, snapshot: tuple[Tensor, ...]) -> None:
        """Take up a state that `snapshot` gave after `length` tokens; it is copied."""


class KeyValueCache(TokenCache, Protocol):
    """Memory of an attention layer: keys and values, oldest first."""

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add (KV, T, D) and (KV, T, Dv); returns all that the new tokens may look at.

        The result is (KV, S, D) and (KV, S, Dv) with the new tokens last, valid until the next
        call.
        """

    def extend(self, tokens: int) -> int:
        """Add tokens whose numbers the native library will write, on a CPU.

        Returns the address of its `CachedTokens`, which are those from `oldest` on with the new
        ones last, valid until the next call.
        """

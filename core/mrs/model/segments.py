"""Which rows of a batch belong to which sequence, and what it is shown there."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mrs.cache.sequence import SequenceCache


@dataclass(frozen=True)
class Sight:
    """Features of a picture, (F, hidden), at the rows `rows` (R,) of the batch.

    Where they take the place of embeddings, R = F. Where layers of their own look at them, R = 1:
    the row from which on they are seen.
    """

    rows: Tensor
    features: Tensor


@dataclass(frozen=True)
class Segment:
    """The new tokens of one sequence: rows `rows` of the batch, remembered in `memory`.

    `total_tokens` is the sequence's length once the whole prompt is in, where these tokens are
    only a chunk of it. `sights` are pictures among them. Tokens turn by their places in
    the sequence plus `offset`; or by `positions` (3, T), which are where they stand in time,
    height and width. `last_seen` (T,) is the last place of the sequence that a token sees, where
    that is not its own.
    """

    rows: slice
    memory: SequenceCache
    total_tokens: int = 0
    sights: tuple[Sight, ...] = ()
    offset: int = 0
    positions: Tensor | None = None
    last_seen: Tensor | None = None

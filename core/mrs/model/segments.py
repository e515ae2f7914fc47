"""Which rows of a batch belong to which sequence."""

from __future__ import annotations

from dataclasses import dataclass

from mrs.cache.sequence import SequenceCache


@dataclass(frozen=True)
class Segment:
    """The new tokens of one sequence: rows `rows` of the batch, remembered in `memory`.

    `total_tokens` is the sequence's length once the whole prompt is in, where these tokens are
    only a chunk of it.
    """

    rows: slice
    memory: SequenceCache
    total_tokens: int = 0

"""Which rows of a batch belong to which sequence."""

from __future__ import annotations

from dataclasses import dataclass

from mrs.cache.sequence import SequenceCache


@dataclass(frozen=True)
class Segment:
    """The new tokens of one sequence: rows `rows` of the batch, remembered in `memory`."""

    rows: slice
    memory: SequenceCache

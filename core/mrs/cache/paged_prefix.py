"""States of recurrent layers after prefixes that a paged cache knows by the hashes of its blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from mrs.cache.prefix_parts import State


class PagedRecurrentPrefixes:
    """The `capacity` prefixes used last, each with one state a recurrent layer."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._states: OrderedDict[tuple[int, ...], tuple[State, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def add(self, block_hashes: Sequence[int], states: Sequence[State]) -> None:
        """Remember the states after the blocks; nothing where either is empty."""
        key = tuple(block_hashes)
        if not key or not states:
            return
        self._states[key] = tuple(states)
        self._states.move_to_end(key)
        while len(self._states) > self._capacity:
            self._states.popitem(last=False)

    def get(self, block_hashes: Sequence[int]) -> tuple[State, ...] | None:
        """The states after exactly these blocks, which then count as used last."""
        key = tuple(block_hashes)
        if key not in self._states:
            return None
        self._states.move_to_end(key)
        return self._states[key]

    def clear(self) -> None:
        self._states.clear()

"""Recurrent states at addresses that never change, one set for each row of a decode step."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import ReferenceType, ref

from torch import Tensor

from mrs.cache.cache_space import CacheSpace
from mrs.cache.recurrent_state import RecurrentStateCache
from mrs.cache.sequence_cache import SequenceCache


class StateRows:
    """A sequence in a row has its states in the row's memory until another row needs it.

    Without recurrent states a row has no memory, and nothing is copied.
    """

    def __init__(self, space: CacheSpace) -> None:
        self._space = space
        self._rows: list[SequenceCache] = []
        self._tenants: list[ReferenceType[SequenceCache] | None] = []

    def caches(self, count: int) -> Sequence[SequenceCache]:
        """Caches of the first `count` rows; layers find the blocks of any sequence by them."""
        while len(self._rows) < count:
            self._rows.append(self._space.new())
            self._tenants.append(None)
        return self._rows[:count]

    @property
    def has_states(self) -> bool:
        """Whether layers have recurrent states.

        Then no row may be without a sequence: its states would be others than those of the row
        that it repeats, and so would be the keys that it writes to the same slot.
        """
        return self.caches(1)[0].has_states

    def place(self, caches: Sequence[SequenceCache]) -> None:
        """Let the states of `caches` be in the first rows."""
        if not self.has_states:
            return
        rows = self.caches(len(caches))
        moving = [index for index, cache in enumerate(caches) if self._tenant(index) is not cache]
        for index in moving:
            self._vacate(index)
        for index in moving:
            former = [n for n in range(len(self._rows)) if self._tenant(n) is caches[index]]
            for n in former:
                self._tenants[n] = None
            for own, state in zip(_states(caches[index]), _states(rows[index]), strict=True):
                own.move_to(state.tensors)
            self._tenants[index] = ref(caches[index])

    def save(self, count: int) -> list[Tensor]:
        """Copies of the states of the first rows."""
        return [x.clone() for x in self._tensors(count)]

    def restore(self, saved: Sequence[Tensor]) -> None:
        """Undo what happened to the states after `save`."""
        for x, before in zip(self._tensors(len(self._rows)), saved, strict=False):
            x.copy_(before)

    def _tensors(self, count: int) -> list[Tensor]:
        return [x for row in self._rows[:count] for state in _states(row) for x in state.tensors]

    def _tenant(self, index: int) -> SequenceCache | None:
        found = self._tenants[index]
        return None if found is None else found()

    def _vacate(self, index: int) -> None:
        tenant = self._tenant(index)
        if tenant is not None:
            for own in _states(tenant):
                own.move_to([x.clone() for x in own.tensors])
        self._tenants[index] = None


def _states(cache: SequenceCache) -> list[RecurrentStateCache]:
    return [layer for layer in cache.layers if isinstance(layer, RecurrentStateCache)]

"""Discourage a reply from saying again what was said before, word for word ("DRY")."""

from __future__ import annotations

from collections.abc import Sequence

#: Longer repetitions are punished no more: the penalty grows exponentially.
_LONGEST = 64


class RepetitionFinder:
    """Tells which tokens would continue a repetition, and how long it is by now.

    Repetitions do not reach across `breakers`. Source: p-e-w's "DRY" sampler, 2024.
    """

    def __init__(self, ids: Sequence[int], breakers: frozenset[int]) -> None:
        self._breakers = breakers
        self._ids: list[int] = []
        self._places: dict[int, list[int]] = {}
        for token in ids:
            self.add(token)

    def add(self, token: int) -> None:
        self._places.setdefault(token, []).append(len(self._ids))
        self._ids.append(token)

    def continuations(self) -> dict[int, int]:
        """Tokens that would lengthen a repetition, and how many tokens it has before them."""
        found: dict[int, int] = {}
        if not self._ids or self._ids[-1] in self._breakers:
            return found
        for place in self._places[self._ids[-1]][:-1]:
            token = self._ids[place + 1]
            found[token] = max(found.get(token, 0), self._length_before(place))
        return found

    def _length_before(self, place: int) -> int:
        """How many tokens up to `place` are the last tokens once more."""
        ids, last = self._ids, len(self._ids) - 1
        length = 1
        while (
            length < min(_LONGEST, place + 1)
            and ids[place - length] == ids[last - length]
            and ids[place - length] not in self._breakers
        ):
            length += 1
        return length

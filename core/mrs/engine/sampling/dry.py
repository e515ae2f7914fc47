"""Finds repetitions in a text, for the DRY penalty ("don't repeat yourself")."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

#: Longer repetitions are counted as this long: the penalty grows exponentially.
_LONGEST = 64


class RepetitionFinder:
    """Finds the tokens that would continue a repetition, and how long it is.

    Repetitions do not reach across `breakers`. Source: p-e-w's "DRY" sampler, 2024.
    """

    def __init__(self, ids: Sequence[int], breakers: frozenset[int]) -> None:
        self._breakers = breakers
        self._ids = array("q", ids[:-_LONGEST])
        #: For each position, how many tokens before it are the last ones of the text, too.
        self._repeated = np.zeros(len(self._ids), np.int8)
        for token in ids[-_LONGEST:]:
            self.add(token)

    def add(self, token: int) -> None:
        repeated = np.zeros(len(self._ids) + 1, np.int8)
        if token not in self._breakers:
            is_same = np.asarray(self._ids) == token
            np.multiply(np.minimum(self._repeated + 1, _LONGEST), is_same, out=repeated[1:])
        self._repeated = repeated
        self._ids.append(token)

    def continuations(self) -> dict[int, int]:
        """Tokens that would lengthen a repetition, and how many tokens it has before them."""
        positions = np.flatnonzero(self._repeated)
        lengths = self._repeated[positions]
        order = lengths.argsort()  # the longest repetition that a token continues counts
        ids = np.asarray(self._ids)[positions[order]]
        return dict(zip(ids.tolist(), lengths[order].tolist(), strict=True))

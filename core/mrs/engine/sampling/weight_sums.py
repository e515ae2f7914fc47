"""Sums of many weights, of which only those near the end of a search are added one by one."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from mrs.engine.sampling.processors import FloatArray

Side = Literal["left", "right"]

#: So many weights are summed up at once.
_BLOCK_WEIGHTS = 128
#: Leaves sign, exponent and 6 bits of the fraction: weights of a group differ by 1/64 at most.
_GROUP_SHIFT = 17


class WeightSums:
    """The sums of weights (C,) from the first one on, in float64."""

    def __init__(self, weights: FloatArray) -> None:
        self._weights = weights
        starts = np.arange(0, len(weights), _BLOCK_WEIGHTS)
        self._sums = np.add.reduceat(weights, starts, dtype=np.float64).cumsum()

    @property
    def total(self) -> float:
        return float(self._sums[-1])

    def search(self, target: float, side: Side) -> tuple[int, float]:
        """The first weight with which the sum is at least `target`, or more ("right"); the sum.

        If there is none, the last weight.
        """
        block, before = _search_groups(self._sums, target, side)
        start = block * _BLOCK_WEIGHTS
        index, total = _search(self._weights[start : start + _BLOCK_WEIGHTS], before, target, side)
        return start + index, total


class SortedWeightSums:
    """The sums of weights (C,), none above 1, from the largest one on; the first of equal ones
    counts as larger.

    They are put into groups by their size, in linear time, and only one group is sorted.
    """

    def __init__(self, weights: FloatArray) -> None:
        self._weights = weights
        if len(weights) > _BLOCK_WEIGHTS:
            self._groups = _group_of(np.ones(1, np.float32)) - _group_of(weights)
        else:
            self._groups = np.zeros(len(weights), np.int32)
        self._sums = np.bincount(self._groups, weights).cumsum()

    def search(self, target: float, side: Side) -> tuple[int, float]:
        """As `WeightSums.search`."""
        group, before = _search_groups(self._sums, target, side)
        members = np.flatnonzero(self._groups == group)
        members = members[np.argsort(-self._weights[members], kind="stable")]
        index, total = _search(self._weights[members], before, target, side)
        return int(members[index]), total


def _group_of(weights: FloatArray) -> npt.NDArray[np.int32]:
    """A larger number for a larger weight."""
    return weights.view(np.int32) >> _GROUP_SHIFT


def _search_groups(sums: npt.NDArray[np.float64], target: float, side: Side) -> tuple[int, float]:
    """The group in which a search ends, and the sum before it."""
    group = min(int(sums.searchsorted(target, side)), len(sums) - 1)
    return group, float(sums[group - 1]) if group else 0.0


def _search(weights: FloatArray, before: float, target: float, side: Side) -> tuple[int, float]:
    sums = before + weights.cumsum(dtype=np.float64)
    index = min(int(sums.searchsorted(target, side)), len(sums) - 1)
    return index, float(sums[index])

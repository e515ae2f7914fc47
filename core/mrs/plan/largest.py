"""Bisection for the largest number that fits."""

from __future__ import annotations

from collections.abc import Callable


def largest(fits: Callable[[int], bool], low: int, high: int, step: int = 1) -> int | None:
    """The largest multiple of `step` from `low` to `high` that fits, or `high` itself.

    None if `low` does not fit. If a number fits, every smaller one must fit. Doubles from `low`,
    then halves the interval.
    """
    if not fits(low):
        return None
    if fits(high):
        return high
    good, bad = low, high
    while 2 * good < bad and fits(2 * good):
        good *= 2
    bad = min(bad, 2 * good)
    while bad - good > step:
        middle = max(good + step, (good + bad) // 2 // step * step)
        if middle >= bad:
            break
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good

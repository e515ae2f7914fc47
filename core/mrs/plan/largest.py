"""Searches for the largest number that fits: by bisection, or guided by what is left over."""

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


def largest_with_spare(spare: Callable[[int], float], good: int, high: int, step: int) -> int:
    """The largest multiple of `step` from `good` to `high` with `spare` of at least 0, or `high`.

    `good` must have some. `spare` must not grow. Where it falls evenly, three or four calls find
    the number: a line through both ends says where it is, and every third call halves the interval
    in case the line misleads.
    """
    if good >= high or (least := spare(high)) >= 0:
        return max(good, high)
    most, bad, calls = spare(good), high, 0
    while bad - good > step:
        calls += 1
        share = 0.5 if calls % 3 == 0 else most / (most - least) if most > 0 else 0.0
        middle = int(good + share * (bad - good)) // step * step
        if middle <= good:
            middle = (good // step + 1) * step
        if middle >= bad:
            middle = (bad - 1) // step * step
        if middle <= good:
            break
        left = spare(middle)
        if left >= 0:
            good, most = middle, left
        else:
            bad, least = middle, left
    return good

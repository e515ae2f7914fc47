"""Scores that fall with the distance of a key (ALiBi, arXiv 2108.12409).

A score gets the position of its key, times the slope of its head: as much as if it lost the
distance times the slope, because what all scores of a query have in common does not count. Each key
has the digits of its position as further values, and queries have the slope times the value of each
digit there, so that every kernel computes the sum. Digits are exact in all formats of caches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Bits of a digit, and how many digits a position has.
DIGIT_BITS, DIGITS = 4, 4
MOST_POSITIONS = 1 << (DIGIT_BITS * DIGITS)
#: Further values of each key: the digits, and zeros that keep the size of a head a multiple of it.
POSITION_VALUES = 16


def alibi_slopes(heads: int, largest: float = 8.0) -> tuple[float, ...]:
    """2^-(largest / heads), its square, its cube and so on.

    For a number that is no power of two those of the next lower one, and then every other one of
    twice as many heads.
    """
    whole = 1 << math.floor(math.log2(heads))
    slopes = [2 ** (-largest * (head + 1) / whole) for head in range(whole)]
    between = [2 ** (-largest * (2 * head + 1) / (2 * whole)) for head in range(heads - whole)]
    return (*slopes, *between)


def query_factors(slopes: Sequence[float], scale: float) -> tuple[float, ...]:
    """The position values of all queries, by head, whose scores are scaled after the product."""
    values = [1 << (DIGIT_BITS * digit) for digit in range(DIGITS)]
    values += [0] * (POSITION_VALUES - DIGITS)
    return tuple(slope / scale * value for slope in slopes for value in values)

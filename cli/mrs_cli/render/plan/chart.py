"""Geometry of charts: lines over a logarithmic axis of tokens, and bars of parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2, log10
from typing import NamedTuple

from mrs.units import rounded_rate

#: Lines of so many colours; further ones are dashed.
COLOURS = 6
LEFT, RIGHT, TOP, BOTTOM, HEIGHT = 46, 18, 10, 34, 300
#: The shortest context of the axis.
LEAST_TOKENS = 256
#: Rates further apart than this are drawn on a logarithmic axis.
LINEAR_RATIO = 12
#: Pixels that a label of the axis of tokens needs.
LABEL_PIXELS = 52


#: From a figure to pixels.
Scale = Callable[[float], float]


class Point(NamedTuple):
    """A rate after so many tokens, and how far off it may be."""

    tokens: int
    low: float
    expected: float
    high: float


class Series(NamedTuple):
    """A line of a chart, by name."""

    name: str
    points: Sequence[Point]


class Tick(NamedTuple):
    at: float
    text: str


class Line(NamedTuple):
    """A drawn line: its colour from 0 on, the paths of it and of its band, and its ends."""

    name: str
    colour: int
    is_dashed: bool
    path: str
    band: str
    ends: Sequence[tuple[float, float, str]]


@dataclass(frozen=True)
class Chart:
    """A drawn chart of `width` by `height` pixels."""

    width: int
    height: int
    left: int
    right: int
    base: int
    across: Sequence[Tick]
    upwards: Sequence[Tick]
    lines: Sequence[Line]
    is_logarithmic: bool


def line_chart(series: Sequence[Series], width: int, *, with_bands: bool) -> Chart:
    """Tokens a second over the context; both ends of each line have their figures as a title."""
    points = [point for each in series for point in each.points]
    most_tokens = max((point.tokens for point in points), default=LEAST_TOKENS)
    rates = [rate for point in points for rate in (point[1:] if with_bands else point[2:3])] or [1]
    is_logarithmic = max(rates) > LINEAR_RATIO * min(rates)
    upwards = decades(min(rates), max(rates)) if is_logarithmic else steps(max(rates))
    low, high = upwards[0], upwards[-1]
    first, last = log2(LEAST_TOKENS), max(log2(most_tokens), log2(LEAST_TOKENS) + 1)
    right, base = width - RIGHT, HEIGHT - BOTTOM

    def x(tokens: float) -> float:
        share = (log2(max(tokens, LEAST_TOKENS)) - first) / (last - first)
        return round(LEFT + share * (right - LEFT), 1)

    def y(rate: float) -> float:
        rate = min(max(rate, low), high)
        share = (rate - low) / (high - low)
        if is_logarithmic:
            share = log10(rate / low) / log10(high / low)
        return round(base - share * (base - TOP), 1)

    return Chart(
        width=width,
        height=HEIGHT,
        left=LEFT,
        right=right,
        base=base,
        across=[
            Tick(x(n), _short(n)) for n in _powers(most_tokens, (right - LEFT) // LABEL_PIXELS)
        ],
        upwards=[Tick(y(rate), rounded_rate(rate)) for rate in upwards],
        lines=[
            _line(index, each, x, y, with_band=with_bands)
            for index, each in enumerate(series)
            if each.points
        ],
        is_logarithmic=is_logarithmic,
    )


def _line(index: int, series: Series, x: Scale, y: Scale, *, with_band: bool) -> Line:
    points = series.points
    middle = path((x(each.tokens), y(each.expected)) for each in points)
    band = ""
    if with_band:
        there = [(x(each.tokens), y(each.high)) for each in points]
        back = [(x(each.tokens), y(each.low)) for each in reversed(points)]
        band = f"{path(there + back)}Z"
    ends = [
        (
            x(each.tokens),
            y(each.expected),
            f"{series.name}: {rounded_rate(each.expected)} tokens/s after {each.tokens:,} tokens",
        )
        for each in (points[0], points[-1])
    ]
    return Line(series.name, index % COLOURS, index >= COLOURS, middle, band, ends)


def path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def steps(most: float) -> list[float]:
    """Round figures from 0 to at least `most`, four to eight of them."""
    unit = 10.0 ** floor(log10(most / 4))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if most / (unit * factor) <= 6)
    return [step * number for number in range(ceil(most / step) + 1)]


def decades(least: float, most: float) -> list[float]:
    """The figures 1, 2 and 5 of each decade from below `least` to above `most`."""
    figures = [
        factor * 10.0**power
        for power in range(floor(log10(least)), ceil(log10(most)) + 1)
        for factor in (1, 2, 5)
    ]
    first = max(index for index, each in enumerate(figures) if each <= least)
    last = min(index for index, each in enumerate(figures) if each >= most)
    return figures[first : last + 1]


def _powers(most: int, labels: float) -> Iterator[int]:
    """Powers of two up to `most`, at most so many."""
    powers = range(int(log2(LEAST_TOKENS)), int(log2(most)) + 1)
    every = max(1, ceil(len(powers) / max(1, labels)))
    return (1 << power for power in powers[::-1][::every][::-1])


def _short(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens >= 1024 else str(tokens)

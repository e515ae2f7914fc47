"""Layouts that scale an image to a grid of squares, each of which becomes one row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mrs.architecture.vision_spec import ImageShape, PixelScale

#: Bound on the rows of an image; a broken config must not make a huge prompt.
MOST_ROWS = 1 << 16


@dataclass(frozen=True)
class SquareGridLayout:
    """At most `most_rows` squares of `square` pixels, which have `pool` x `pool` patches each.

    A shape's `grid` is (rows, columns) of squares. `marks` are the texts before, for and after
    them.
    """

    square: int
    pool: int
    most_rows: int
    scale: PixelScale
    resampling: str
    marks: ClassVar[tuple[str, str, str]]

    def of_grid(self, rows: int, columns: int) -> ImageShape:
        begin, token, end = self.marks
        return ImageShape(
            pixels=(3, rows * self.square, columns * self.square),
            patches=rows * columns * self.pool**2,
            rows=rows * columns,
            text=begin + token * (rows * columns) + end,
            grid=(rows, columns),
        )

"""Dynamic resolution: images nearly keep their size and aspect ratio (arXiv 2409.12191)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, sqrt
from typing import Literal

from mrs.architecture.vision.image_layouts import read_resampling, read_scale, squarest_grid
from mrs.architecture.vision_spec import MAX_ASPECT_RATIO, ImageShape, PixelScale
from mrs.config.config import Config
from mrs.errors import NotReadable, UsageError

#: Bound on the rows that small images are scaled up to, against huge prompts by a broken config.
MOST_LEAST_ROWS = 1 << 16


@dataclass(frozen=True)
class DynamicLayout:
    """Both edges become multiples of `factor`, and the image has `min_pixels` to `max_pixels`.

    The patches (of `patch_size` pixels) in a square of `factor` x `factor` pixels become one row.
    A shape's `grid` is (rows, columns) of such squares. No edge is rounded to fewer squares than
    `least_squares`. The bounds are those of an image that is repeated as so many `frames`. An image
    with an edge below `factor` is first scaled up if edges are `grown`: both `at_once`, or
    one after the other, `in_turn`.
    """

    patch_size: int
    factor: int
    min_pixels: int
    max_pixels: int
    scale: PixelScale
    resampling: str
    token: str
    is_resizable: bool = True
    least_squares: int = 0
    frames: int = 1
    grown: Literal["at_once", "in_turn"] | None = None

    def shape(self, height: int, width: int) -> ImageShape:
        """UsageError for an image that is too long and narrow."""
        return self._of_grid(*self.grid(height, width, self.frames, self.frames))

    def largest(self, edge: int) -> ImageShape:
        """An upper bound, since rounding adds most to small and to very long images."""
        pixels = self.frames * self.factor**2
        least, most = self.min_pixels / pixels, self.max_pixels / pixels
        elongated = sqrt(min(edge, MAX_ASPECT_RATIO))
        rows = max(round(edge / self.factor), 1) ** 2
        if self.grown is not None:
            rows = max(rows, min(edge, MAX_ASPECT_RATIO))
        if rows > most:
            rows = floor(max(most, sqrt(most) * elongated, 1))
        rows = max(rows, floor(least + sqrt(least) * (elongated + 1 / elongated) + 1))
        return self._of_grid(*squarest_grid(rows))

    def grid(self, height: int, width: int, frames: int = 1, counted: int = 1) -> tuple[int, int]:
        """(rows, columns) of squares: each edge is rounded, and the image scaled if necessary.

        The bounds may be those of `frames` images of one size, compared as if they were `counted`.
        UsageError for an image that is too long and narrow.
        """
        if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
            raise UsageError(
                f"an image of {width} x {height} pixels is too narrow for this model",
                hint=f"one edge may be at most {MAX_ASPECT_RATIO} times the other one",
            )
        factor = self.factor
        if self.grown is not None and min(height, width) < factor:
            scaled_up = _at_once if self.grown == "at_once" else _in_turn
            height, width = scaled_up(height, width, factor)
        pixels = frames * height * width
        rows, columns = self.rounded(height), self.rounded(width)
        if counted * rows * columns * factor**2 > self.max_pixels:
            shrink = sqrt(pixels / self.max_pixels)
            rows = max(1, floor(height / shrink / factor))
            columns = max(1, floor(width / shrink / factor))
        elif counted * rows * columns * factor**2 < self.min_pixels:
            grow = sqrt(self.min_pixels / pixels)
            rows, columns = ceil(height * grow / factor), ceil(width * grow / factor)
        return rows, columns

    def rounded(self, edge: int) -> int:
        """The squares along an edge of `edge` pixels that is not scaled."""
        return max(round(edge / self.factor), self.least_squares)

    def _of_grid(self, rows: int, columns: int) -> ImageShape:
        return ImageShape(
            pixels=(3, rows * self.factor, columns * self.factor),
            patches=rows * columns * (self.factor // self.patch_size) ** 2,
            rows=rows * columns,
            text=self.token * (rows * columns),
            grid=(rows, columns),
        )


def _at_once(height: int, width: int, least: int) -> tuple[int, int]:
    """The edges scaled up until none is below `least`, rounded down."""
    scale = max(least / height, least / width)
    return int(height * scale), int(width * scale)


def _in_turn(height: int, width: int, least: int) -> tuple[int, int]:
    """The edges scaled up until the height is not below `least`, then until the width is not."""
    if height < least:
        height, width = least, round(width * least / height)
    if width < least:
        height, width = round(height * least / width), least
    return height, width


def read_dynamic(images: Config, patch_size: int, merge: int, token: str) -> DynamicLayout:
    """The layout in preprocessor_config.json, in either of its spellings.

    `merge` x `merge` patches of `patch_size` pixels become one row.
    """
    images.allow_only("do_resize", True)
    images.allow_only("patch_size", patch_size)
    images.allow_only("merge_size", merge)
    size = Config(images.mapping("size"), images.where)
    least = images.positive("min_pixels", size.values.get("shortest_edge"))
    most = images.positive("max_pixels", size.values.get("longest_edge"))
    if least > MOST_LEAST_ROWS * (patch_size * merge) ** 2:
        raise NotReadable(f"min_pixels = {least} is out of range", where=images.where)
    return DynamicLayout(
        patch_size=patch_size,
        factor=patch_size * merge,
        min_pixels=least,
        max_pixels=most,
        scale=read_scale(images),
        resampling=read_resampling(images),
        token=token,
    )

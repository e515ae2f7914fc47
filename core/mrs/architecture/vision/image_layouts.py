"""How images are resized and cut for a tower: what layouts share. Sizes only, no pixels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from math import isqrt
from typing import ClassVar

from mrs.architecture.vision_spec import ImageLayout, ImageShape, PixelScale
from mrs.config.config import Config
from mrs.errors import NotReadable, Unsupported, UsageError

#: Pillow's resampling filters by their ids in preprocessor_config.json.
RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}

#: Bound on edges in preprocessor_config.json, in pixels.
_MOST_EDGE = 2**14

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
CLIP_IMAGES = {
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
    "rescale_factor": 1 / 255,
    "resample": 3,
}


def read_scale(images: Config) -> PixelScale:
    """How pixels are rescaled and normalized."""
    for step in ("do_rescale", "do_normalize"):
        images.allow_only(step, True)
    mean, std = images.numbers("image_mean", 3), images.numbers("image_std", 3, above=0)
    return PixelScale(mean, std, images.number("rescale_factor", 1 / 255))


def read_resampling(images: Config) -> str:
    return RESAMPLING.get(images.integer("resample", 3), "bicubic")


def read_size(images: Config, key: str, *sides: str) -> tuple[int, ...]:
    """The lengths of `sides` in the size under `key`, which may be one number for all sides."""
    value = images.values.get(key)
    if isinstance(value, int):
        lengths = (images.positive(key),) * len(sides)
    else:
        size = Config(images.mapping(key), images.where)
        lengths = tuple(size.positive(side) for side in sides)
    if max(lengths) > _MOST_EDGE:
        raise NotReadable(f"{key} = {value!r} is out of range", where=images.where)
    return lengths


def squarest_grid(squares: int) -> tuple[int, int]:
    """(rows, columns) of the grid of that many `squares` which is nearest to a square."""
    rows = next(rows for rows in range(isqrt(squares), 0, -1) if squares % rows == 0)
    return rows, squares // rows


def read_edge(config: Config, key: str) -> int:
    """The edge of a square, which may be a list of two equal numbers."""
    value = config.values.get(key)
    if not isinstance(value, (list, tuple)):
        return config.positive(key)
    edges = {Config({key: each}, config.where).positive(key) for each in value}
    if len(edges) != 1:
        raise Unsupported(f"{key} = {value!r} is not a square", where=config.where)
    return edges.pop()


def limit_edge(layout: ImageLayout, edge: int) -> ImageLayout:
    """The layout for images with no edge longer than `edge` pixels.

    UsageError if the model scales every image to one size.
    """
    if not layout.is_resizable:
        raise UsageError(
            "--max-edge has no effect: this model scales every image to one size",
            hint="leave it out",
        )
    return limit_upscaling(layout, edge)


@singledispatch
def limit_upscaling(layout: ImageLayout, edge: int) -> ImageLayout:
    """The same layout; layouts that enlarge images register one that stays within `edge`."""
    return layout


def best_grid(height: int, width: int, edge: int, least: int, most: int) -> tuple[int, int]:
    """(rows, columns) of `least` to `most` square tiles with the aspect ratio nearest the image's.

    Of equally near grids the image has the largest that it fills by more than a half, where a tile
    has `edge` x `edge` pixels.
    """
    grids = [
        (rows, columns)
        for columns in range(1, most + 1)
        for rows in range(1, most + 1)
        if least <= rows * columns <= most
    ]
    best, least_difference = (1, 1), float("inf")
    for rows, columns in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        difference = abs(width / height - columns / rows)
        is_filled = width * height > 0.5 * edge * edge * rows * columns
        if difference < least_difference or (difference == least_difference and is_filled):
            best, least_difference = (rows, columns), difference
    return best


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


@dataclass(frozen=True)
class SquareTile:
    """A tile of `edge` x `edge` pixels, with `side` x `side` patches and `rows` rows."""

    edge: int
    side: int
    rows: int

    def views(self, rows: int, columns: int) -> int:
        """Views of an image: its rows * columns tiles, and the whole image if these are several."""
        return rows * columns + (rows * columns > 1)

    def shape(self, rows: int, columns: int, text: str) -> ImageShape:
        """The shape of an image in a `grid` of (rows, columns) tiles."""
        views = self.views(rows, columns)
        return ImageShape(
            pixels=(views, 3, self.edge, self.edge),
            patches=views * self.side**2,
            rows=views * self.rows,
            text=text,
            grid=(rows, columns),
            views=((self.side, self.side),) * views,
        )

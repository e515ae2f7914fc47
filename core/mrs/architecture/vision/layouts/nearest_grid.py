"""How Muse Glimmer lays out images: the grid of squares whose aspect ratio is nearest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor, sqrt

from mrs.architecture.config import Config
from mrs.architecture.vision.image_layouts import read_resampling, read_scale, squarest_grid
from mrs.architecture.vision.layouts.square_grid import MOST_ROWS, SquareGridLayout
from mrs.architecture.vision.towers.muse_tower import TOKEN
from mrs.architecture.vision_spec import ImageShape
from mrs.errors import NotReadable

BEGIN, END = "<|image_start|>", "<|image_end|>"


@dataclass(frozen=True)
class NearestGridLayout(SquareGridLayout):
    """Images nearly keep their size, with at most `most_rows` squares."""

    marks = BEGIN, TOKEN, END
    is_resizable: bool = True

    def shape(self, height: int, width: int) -> ImageShape:
        tall, wide = height / self.square, width / self.square
        if tall * wide > self.most_rows:
            tall = sqrt(self.most_rows / (wide / tall))
            wide = tall * (width / height)
        # Of grids that are equally near, transformers takes the first one of a Python set.
        grids = {(r, c) for r in (floor(tall), ceil(tall)) for c in (floor(wide), ceil(wide))}
        fitting = [(r, c) for r, c in grids if r and c and r * c <= self.most_rows]
        fitting = fitting or [(max(1, round(tall)), max(1, round(wide)))]
        return self.of_grid(*min(fitting, key=lambda g: abs(g[0] / g[1] - height / width)))

    def largest(self, edge: int) -> ImageShape:
        """Images that are so narrow that no grid fits have one square for each of their length."""
        side = ceil(edge / self.square)
        rows = max(min(side**2, self.most_rows), side)
        return self.of_grid(*squarest_grid(rows))

    def of_grid(self, rows: int, columns: int) -> ImageShape:
        return replace(
            super().of_grid(rows, columns), views=((rows * self.pool, columns * self.pool),)
        )


def read_nearest_grid(
    images: Config, patch_size: int, merge: int, frames: int
) -> NearestGridLayout:
    images.allow_only("do_resize", True)
    images.allow_only("patch_size", patch_size)
    images.allow_only("merge_size", merge)
    images.allow_only("temporal_patch_size", frames)
    most = images.positive("max_image_tokens")
    if most > MOST_ROWS:
        raise NotReadable(f"max_image_tokens = {most} is out of range", where=images.where)
    square = patch_size * merge
    return NearestGridLayout(square, merge, most, read_scale(images), read_resampling(images))

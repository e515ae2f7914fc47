"""How Mistral 3 lays out images: none longer than some edge, of any aspect ratio."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from mrs.architecture.config import Config
from mrs.architecture.vision.image_layouts import read_resampling, read_scale, read_size
from mrs.architecture.vision_spec import ImageShape, PixelScale

TOKEN, ROW_END, IMAGE_END = "[IMG]", "[IMG_BREAK]", "[IMG_END]"


@dataclass(frozen=True)
class LongestEdgeLayout:
    """No edge is longer than `longest_edge`; edges are rounded up to multiples of `square` pixels.

    A square has `merged` x `merged` patches of the tower and becomes one row of the language
    model's input. A shape's `grid` is (rows, columns) of squares.
    """

    longest_edge: int
    square: int
    merged: int
    scale: PixelScale
    resampling: str
    is_resizable: bool = True

    def shape(self, height: int, width: int) -> ImageShape:
        ratio = max(height, width) / self.longest_edge
        if ratio > 1:
            height, width = max(1, floor(height / ratio)), max(1, floor(width / ratio))
        rows, columns = -(-height // self.square), -(-width // self.square)
        line = TOKEN * columns
        return ImageShape(
            pixels=(3, rows * self.square, columns * self.square),
            patches=rows * columns * self.merged**2,
            rows=rows * columns,
            text=ROW_END.join([line] * rows) + IMAGE_END,
            grid=(rows, columns),
        )

    def largest(self, edge: int) -> ImageShape:
        return self.shape(edge, edge)


def read_longest_edge(images: Config, patch_size: int, merged: int) -> LongestEdgeLayout:
    sides = ("longest_edge",) if "longest_edge" in images.mapping("size") else ("height", "width")
    return LongestEdgeLayout(
        longest_edge=min(read_size(images, "size", *sides)),
        square=patch_size * merged,
        merged=merged,
        scale=read_scale(images),
        resampling=read_resampling(images),
    )

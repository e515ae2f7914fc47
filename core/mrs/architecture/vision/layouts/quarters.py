"""How Idefics 2 lays out images: nearly in their own size, and then also in quarters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mrs.architecture.config import Config
from mrs.architecture.vision.image_layouts import read_resampling, read_scale, read_size
from mrs.architecture.vision_spec import ImageShape, PixelScale
from mrs.errors import NotReadable

EDGE, TOKEN = "<fake_token_around_image>", "<image>"


@dataclass(frozen=True)
class QuartersLayout:
    """Views keep their aspect ratio, and edges from `shortest_edge` to `longest_edge` pixels.

    The last view is the whole image; if it `is_split`, its quarters precede it. Each view becomes
    `rows` rows. The tower's input are the pixels of each patch, without incomplete ones.
    """

    patch_size: int
    shortest_edge: int
    longest_edge: int
    is_split: bool
    rows: int
    scale: PixelScale
    resampling: str
    is_resizable: bool = True

    def shape(self, height: int, width: int) -> ImageShape:
        parts = (box[2:] for box in self.boxes(height, width))
        return self._shape([self.scaled(*size) for size in parts])

    def largest(self, edge: int) -> ImageShape:
        """An upper bound: all views are squares."""
        sizes = [-(-edge // 2)] * 4 if self.is_split else []
        most = (max(min(size, self.longest_edge), self.shortest_edge) for size in [*sizes, edge])
        return self._shape([(size, size) for size in most])

    def boxes(self, height: int, width: int) -> list[tuple[int, int, int, int]]:
        """(top, left, height, width) of each view in the image; one of a line has no quarters."""
        whole = [(0, 0, height, width)]
        if not self.is_split or min(height, width) < 2:
            return whole
        tops = ((0, height // 2), (height // 2, height - height // 2))
        lefts = ((0, width // 2), (width // 2, width - width // 2))
        return [(top, left, tall, wide) for top, tall in tops for left, wide in lefts] + whole

    def scaled(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of a view that has this size in the image."""
        ratio, most = width / height, self.longest_edge
        if width >= height and width > most:
            height, width = int(most / ratio), most
        elif height > width and height > most:
            height, width = most, int(most * ratio)
        return max(height, self.shortest_edge), max(width, self.shortest_edge)

    def _shape(self, sizes: Sequence[tuple[int, int]]) -> ImageShape:
        size = self.patch_size
        views = tuple((height // size, width // size) for height, width in sizes)
        patches = sum(rows * columns for rows, columns in views)
        return ImageShape(
            pixels=(patches, 3 * size**2),
            patches=patches,
            rows=len(views) * self.rows,
            text=EDGE + (TOKEN * self.rows + EDGE) * len(views),
            views=views,
        )


def read_quarters(images: Config, patch_size: int, rows: int) -> QuartersLayout:
    images.allow_only("do_resize", True)
    shortest, longest = read_size(images, "size", "shortest_edge", "longest_edge")
    if shortest < patch_size:
        raise NotReadable(
            f"the shortest edge of {shortest} pixels is less than a patch", where=images.where
        )
    return QuartersLayout(
        patch_size,
        shortest,
        longest,
        images.flag("do_image_splitting", False),
        rows,
        read_scale(images),
        read_resampling(images),
    )

"""How Phi-4-multimodal lays out images: in crops nearly of their own size, and as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from mrs.architecture.config import Config
from mrs.architecture.vision.best_grid import best_grid
from mrs.architecture.vision.image_layouts import read_scale, read_size
from mrs.architecture.vision.towers.phi4_tower import Phi4Tower
from mrs.architecture.vision_spec import ImageShape, PixelScale
from mrs.errors import NotReadable

#: Bound on the crops of an image; a broken config must not make a huge prompt.
MOST_CROPS = 256


@dataclass(frozen=True)
class PaddedCropsLayout:
    """Images are enlarged to fit the fewest crops of `edge` x `edge` pixels that hold them.

    If those are more than `most_crops`, the grid of crops has the aspect ratio nearest the image's.
    White padding fills the last crops; patches of nothing else are not encoded. A shape's `grid` is
    (rows of crops, columns of crops, features along a crop's edge, rows of features, columns of
    features).
    """

    edge: int
    patch_size: int
    most_crops: int
    scale: PixelScale
    token: str
    is_resizable: bool = True

    def shape(self, height: int, width: int) -> ImageShape:
        rows, columns = self._grid(height, width)
        tall, wide = self.scaled(height, width)
        return self._shape(
            rows, columns, ceil(tall / self.patch_size), ceil(wide / self.patch_size)
        )

    def largest(self, edge: int) -> ImageShape:
        """A column of as many crops as possible has most features: each row of them ends with one
        more."""
        most = ceil(edge / self.edge)
        rows, columns = (most, most) if most**2 <= self.most_crops else (self.most_crops, 1)
        side = self.edge // self.patch_size
        return self._shape(rows, columns, rows * side, columns * side)

    def scaled(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of the image inside its crops."""
        rows, columns = self._grid(height, width)
        tall, wide = rows * self.edge, columns * self.edge
        by_width, by_height = wide / width, tall / height
        if by_width < by_height:
            return max(1, int(height * by_width)), wide
        return tall, max(1, int(width * by_height))

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        rows, columns = ceil(height / self.edge), ceil(width / self.edge)
        if rows * columns <= self.most_crops:
            return rows, columns
        return best_grid(height, width, self.edge, 1, self.most_crops)

    def _shape(self, rows: int, columns: int, tall: int, wide: int) -> ImageShape:
        """The shape of an image with `tall` x `wide` patches that are not padding."""
        side = self.edge // self.patch_size
        crops = tuple(
            (max(1, min(side, tall - row * side)), max(1, min(side, wide - column * side)))
            for row in range(rows)
            for column in range(columns)
        )
        half, height, width = side // 2, ceil(tall / 2), ceil(wide / 2)
        features = height * (width + 1) + 1 + half * (half + 1)
        return ImageShape(
            pixels=(1 + len(crops), 3, self.edge, self.edge),
            patches=(1 + len(crops)) * side**2,
            rows=features,
            text=self.token * features,
            grid=(rows, columns, half, height, width),
            views=((side, side), *crops),
        )


def read_padded_crops(images: Config, tower: Phi4Tower, token: str) -> PaddedCropsLayout:
    images.allow_only("patch_size", tower.patches.size)
    edges = {*read_size(images, "size", "height", "width"), tower.image_size}
    most = images.positive("dynamic_hd")
    if len(edges) > 1 or most > MOST_CROPS:
        raise NotReadable(
            f"{most} crops of {max(edges)} pixels do not fit the tower's {tower.image_size}, or "
            "are out of range",
            where=images.where,
        )
    return PaddedCropsLayout(tower.image_size, tower.patches.size, most, read_scale(images), token)

"""Images as crops, which fill a grid, and one more crop that is the whole image."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from mrs.architecture.config import Config
from mrs.architecture.vision.image_layouts import read_scale
from mrs.architecture.vision.towers.clip_tower import ClipTower
from mrs.architecture.vision_spec import ImageShape, PixelScale

#: MERGED x MERGED patches become one feature.
MERGED = 2


@dataclass(frozen=True)
class CropsLayout:
    """Images are enlarged as far as `most_crops` crops of `edge` x `edge` pixels allow.

    White padding fills the last crops. A shape's `grid` is (rows of crops, columns of crops,
    features along a crop's edge, rows of features, columns of features).
    """

    edge: int
    patch_size: int
    most_crops: int
    scale: PixelScale
    token: str
    is_resizable: bool = False

    def shape(self, height: int, width: int) -> ImageShape:
        scaled, _ = self.scaled(height, width)
        rows, columns = (ceil(size / self.edge) for size in scaled)
        return self._shape(rows, columns)

    def largest(self, edge: int) -> ImageShape:
        """Every image is enlarged, so only its aspect ratio matters: try all grids."""
        grids = [(rows, self.most_crops // rows) for rows in range(1, self.most_crops + 1)]
        return max((self._shape(*grid) for grid in grids), key=lambda shape: shape.rows)

    def scaled(self, height: int, width: int) -> tuple[tuple[int, int], bool]:
        """((height, width) before padding, whether the image is transposed to be scaled)."""
        if width < height:
            (transposed_height, transposed_width), _ = self.scaled(width, height)
            return (transposed_width, transposed_height), True
        columns = 1
        while (columns + 1) * ceil((columns + 1) * height / width) <= self.most_crops:
            columns += 1
        wide = columns * self.edge
        return (max(1, int(wide / (width / height))), wide), False

    def _shape(self, rows: int, columns: int) -> ImageShape:
        side = self.edge // self.patch_size // MERGED
        features = rows * side * (columns * side + 1) + 1 + side * (side + 1)
        views = 1 + rows * columns
        return ImageShape(
            pixels=(views, 3, self.edge, self.edge),
            patches=views * ((self.edge // self.patch_size) ** 2 + 1),
            rows=features,
            text=self.token * features,
            grid=(rows, columns, side, rows * side, columns * side),
        )


def read_crops(images: Config, tower: ClipTower, token: str) -> CropsLayout:
    return CropsLayout(
        edge=tower.image_size,
        patch_size=tower.patches.size,
        most_crops=images.positive("num_crops"),
        scale=read_scale(images),
        token=token,
    )

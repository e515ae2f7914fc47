"""Images in the grid of tiles that fits best: how Llama 3.2 lays them out."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from mrs.architecture.config import Config
from mrs.architecture.vision.image_layouts import read_resampling, read_scale, read_size
from mrs.architecture.vision.towers.mllama_tower import ROWS_MULTIPLE, TilesTower, tile_grids
from mrs.architecture.vision_spec import ImageShape, PixelScale
from mrs.errors import NotReadable


@dataclass(frozen=True)
class TilesLayout:
    """The grid of tiles of `edge` pixels that fits an image best; black padding right and below.

    A shape's `grid` is (rows, columns) of tiles. The tower encodes `positions` patches of each of
    `most_tiles` tiles; cross-attention uses those of the tiles in the grid.
    """

    edge: int
    most_tiles: int
    positions: int
    scale: PixelScale
    resampling: str
    token: str
    is_resizable: bool = True

    def shape(self, height: int, width: int) -> ImageShape:
        return self._shape(*self.grid(height, width))

    def largest(self, edge: int) -> ImageShape:
        """Grids have at most as many rows and columns as tiles are needed for an edge of `edge`."""
        most = -(-edge // self.edge)
        grids = [grid for grid in tile_grids(self.most_tiles) if max(grid) <= most]
        return max((self._shape(*grid) for grid in grids), key=lambda shape: shape.keys)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """(rows, columns) of the grid that enlarges the image least, or else shrinks it least.

        Of several such grids, the one with the fewest tiles.
        """

        def scale(grid: tuple[int, int]) -> float:
            return min(grid[0] * self.edge / height, grid[1] * self.edge / width)

        grids = tile_grids(self.most_tiles)
        scales = [scale(grid) for grid in grids]
        enlarging = [each for each in scales if each >= 1]
        best = min(enlarging) if enlarging else max(scales)
        equal = [grid for grid, each in zip(grids, scales, strict=True) if each == best]
        return min(equal, key=lambda grid: grid[0] * grid[1])

    def scaled(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of the scaled image inside its grid.

        It is enlarged only if both edges are shorter than a tile's.
        """
        rows, columns = self.grid(height, width)
        most_height = min(max(height, self.edge), rows * self.edge)
        most_width = min(max(width, self.edge), columns * self.edge)
        by_height, by_width = most_height / height, most_width / width
        if by_width < by_height:
            return min(floor(height * by_width) or 1, most_height), most_width
        return most_height, min(floor(width * by_height) or 1, most_width)

    def _shape(self, rows: int, columns: int) -> ImageShape:
        padded = -(-self.positions // ROWS_MULTIPLE) * ROWS_MULTIPLE
        return ImageShape(
            pixels=(self.most_tiles, 3, self.edge, self.edge),
            patches=self.most_tiles * padded,
            rows=1,
            text=self.token,
            grid=(rows, columns),
            keys=rows * columns * self.positions,
        )


def read_tiles(images: Config, tower: TilesTower, token: str) -> TilesLayout:
    """The layout for `tower`; preprocessor_config.json must agree with it on the tiles."""
    edges = {*read_size(images, "size", "height", "width"), tower.image_size}
    if len(edges) > 1 or images.positive("max_image_tiles") != tower.most_tiles:
        raise NotReadable(
            f"preprocessor_config.json does not match the tower, which has {tower.most_tiles} "
            f"tiles of {tower.image_size} pixels",
            where=images.where,
            hint="it may belong to another model",
        )
    return TilesLayout(
        edge=tower.image_size,
        most_tiles=tower.most_tiles,
        positions=tower.positions,
        scale=read_scale(images),
        resampling=read_resampling(images),
        token=token,
    )

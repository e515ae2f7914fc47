"""How Llama 4 lays out images: in the grid of tiles that suits them best."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from mrs.architecture.config import Config
from mrs.architecture.vision.image_layouts import read_resampling, read_scale, read_size
from mrs.architecture.vision.square_tiles import SquareTile
from mrs.architecture.vision.towers.llama4_tower import Llama4Tower
from mrs.architecture.vision_spec import ImageShape, PixelScale
from mrs.errors import NotReadable

BEGIN, END, WHOLE, TOKEN = "<|image_start|>", "<|image_end|>", "<|image|>", "<|patch|>"

COLUMN_END, ROW_END = "<|tile_x_separator|>", "<|tile_y_separator|>"

#: Bound on the tiles of an image; a broken config must not make a huge prompt.
MOST_TILES = 256


@dataclass(frozen=True)
class PaddedTilesLayout:
    """Images are scaled into the grid of tiles that suits them best, and padded with black.

    One more tile has the whole image, if there are several. A shape's `grid` is (rows, columns) of
    tiles. `fills` says that images are enlarged to the grid.
    """

    tile: SquareTile
    most: int
    fills: bool
    scale: PixelScale
    resampling: str
    is_resizable: bool = True

    def shape(self, height: int, width: int) -> ImageShape:
        return self._of_grid(*self._grid(height, width))

    def largest(self, edge: int) -> ImageShape:
        """An upper bound: as many tiles as there may be, unless every image fits into one."""
        return self._of_grid(1, 1 if edge <= self.tile.edge and not self.fills else self.most)

    def scaled(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of the image in its grid, without padding."""
        rows, columns = self._grid(height, width)
        tall, wide = rows * self.tile.edge, columns * self.tile.edge
        if not self.fills:  # smaller images are enlarged to one tile at most
            tall = min(max(height, self.tile.edge), tall)
            wide = min(max(width, self.tile.edge), wide)
        across, down = wide / width, tall / height
        if across < down:
            return max(min(floor(height * across), tall), 1), wide
        return tall, max(min(floor(width * down), wide), 1)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """The grid that enlarges the image least, or else shrinks it least; then the smallest."""

        def factor(grid: tuple[int, int]) -> float:
            return min(grid[0] * self.tile.edge / height, grid[1] * self.tile.edge / width)

        grids = _grids(self.most)
        enlarging = [grid for grid in grids if factor(grid) >= 1]
        if enlarging:
            best = (max if self.fills else min)(map(factor, enlarging))
        else:
            best = max(map(factor, grids))
        return min((g for g in grids if factor(g) == best), key=lambda g: g[0] * g[1])

    def _of_grid(self, rows: int, columns: int) -> ImageShape:
        return self.tile.shape(rows, columns, self._text(rows, columns))

    def _text(self, rows: int, columns: int) -> str:
        tile = TOKEN * self.tile.rows
        line = COLUMN_END.join([tile] * columns) + ROW_END
        return BEGIN + (line * rows if rows * columns > 1 else "") + WHOLE + tile + END


def _grids(most: int) -> list[tuple[int, int]]:
    """All (rows, columns) of up to `most` tiles; of equally good ones the first counts.

    Grids of one aspect ratio are adjacent, the largest first.
    """
    by_ratio: dict[float, list[tuple[int, int]]] = {}
    for count in range(most, 0, -1):
        for rows in range(1, count + 1):
            if count % rows == 0:
                columns = count // rows
                by_ratio.setdefault(rows / columns, []).append((rows, columns))
    return [grid for grids in by_ratio.values() for grid in grids]


def read_padded_tiles(images: Config, tower: Llama4Tower, tile_rows: int) -> PaddedTilesLayout:
    images.allow_only("do_resize", True)
    edges = {*read_size(images, "size", "height", "width")}
    most = images.positive("max_patches", 16)
    if edges != {tower.side * tower.patches.size} or most > MOST_TILES:
        raise NotReadable(
            f"preprocessor_config.json does not match the tower, or {most} tiles are out of range",
            where=images.where,
        )
    return PaddedTilesLayout(
        SquareTile(edges.pop(), tower.side, tile_rows),
        most=most,
        fills=images.flag("resize_to_max_canvas", False),
        scale=read_scale(images),
        resampling=read_resampling(images),
    )

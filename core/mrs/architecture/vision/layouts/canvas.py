"""How InternVL lays out images: resized to the best grid of tiles."""

from __future__ import annotations

from dataclasses import dataclass

from mrs.architecture.config import Config
from mrs.architecture.vision.best_grid import best_grid
from mrs.architecture.vision.image_layouts import read_resampling, read_scale, read_size
from mrs.architecture.vision.square_tiles import SquareTile
from mrs.architecture.vision.towers.internvl_tower import InternVlTower
from mrs.architecture.vision_spec import ImageShape, PixelScale
from mrs.errors import NotReadable

BEGIN, TOKEN, END = "<img>", "<IMG_CONTEXT>", "</img>"

#: Bound on the tiles of an image; a broken config must not make a huge prompt.
MOST_TILES = 256


@dataclass(frozen=True)
class CanvasLayout:
    """Images are stretched to the grid of tiles nearest in shape; one more tile has the whole.

    An image of one tile has no further one. A shape's `grid` is (rows, columns) of tiles.
    """

    tile: SquareTile
    least: int
    most: int
    scale: PixelScale
    resampling: str
    is_resizable: bool = False

    def shape(self, height: int, width: int) -> ImageShape:
        return self._of_grid(*best_grid(height, width, self.tile.edge, self.least, self.most))

    def largest(self, edge: int) -> ImageShape:
        """As many tiles as there may be: some aspect ratio leads to them."""
        return self._of_grid(1, self.most)

    def _of_grid(self, rows: int, columns: int) -> ImageShape:
        count = self.tile.views(rows, columns) * self.tile.rows
        return self.tile.shape(rows, columns, BEGIN + TOKEN * count + END)


def read_canvas(images: Config, tower: InternVlTower, tile_rows: int) -> CanvasLayout:
    images.allow_only("do_resize", True)
    edges = {*read_size(images, "size", "height", "width")}
    least, most = images.positive("min_patches", 1), images.positive("max_patches", 12)
    if edges != {tower.side * tower.patches.size} or not least <= most <= MOST_TILES:
        raise NotReadable(
            f"preprocessor_config.json does not match the tower, or its {least} to {most} tiles "
            "are out of range",
            where=images.where,
        )
    return CanvasLayout(
        SquareTile(edges.pop(), tower.side, tile_rows),
        least=least,
        most=most,
        scale=read_scale(images),
        resampling=read_resampling(images),
    )

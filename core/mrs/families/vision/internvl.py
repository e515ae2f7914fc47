"""InternVL: large images in tiles, and several patches for each row."""

from __future__ import annotations

from dataclasses import dataclass

from mrs.architecture.config import Config
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Norm
from mrs.architecture.vision.best_grid import best_grid
from mrs.architecture.vision.image_layouts import (
    CLIP_IMAGES,
    read_resampling,
    read_scale,
    read_size,
)
from mrs.architecture.vision.shared_projectors import FoldedMlpProjector
from mrs.architecture.vision.square_tiles import SquareTile
from mrs.architecture.vision.towers.internvl_tower import (
    INTERNVL_DEFAULTS,
    INTERNVL_NAMES,
    InternVlTower,
    read_internvl_tower,
)
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import ImageShape, PixelScale, Vision
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


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model = configs.model
    model.allow_only("vision_feature_select_strategy", "default")
    model.allow_only("vision_feature_layer", -1)
    fold = round(1 / model.positive_number("downsample_ratio", 0.5))
    tower = read_internvl_tower(configs.tower)
    if fold < 1 or tower.side % fold:
        raise NotReadable(
            f"{tower.side} patches along the edge of a tile do not fit downsample_ratio",
            where=model.where,
        )
    activation = model.activation("gelu", "projector_hidden_act")
    return Vision(
        tower,
        FoldedMlpProjector(tower.hidden_size, fold, activation, Norm(1e-5, "layer", bias=True)),
        _read_layout(configs.images, tower, (tower.side // fold) ** 2),
        placeholder=TOKEN,
        image_token_id=model.integer("image_token_id", 151_667),
    )


def _read_layout(images: Config, tower: InternVlTower, tile_rows: int) -> CanvasLayout:
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


FAMILY = VisionFamily(
    "internvl",
    read,
    names={
        **INTERNVL_NAMES,
        "projector.norm": "multi_modal_projector.layer_norm",
        "projector.up": "multi_modal_projector.linear_1",
        "projector.down": "multi_modal_projector.linear_2",
    },
    text="qwen2",
    tower_defaults=INTERNVL_DEFAULTS,
    image_defaults={**CLIP_IMAGES, "size": {"height": 384, "width": 384}},
    ignored=("vision_tower.embeddings.mask_token",),
)

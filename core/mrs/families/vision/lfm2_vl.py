"""LFM2-VL: images of nearly their own size; large ones in tiles, and then also as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.dynamic_layout import DynamicLayout
from mrs.architecture.vision.image_layouts import best_grid, read_resampling, read_scale
from mrs.architecture.vision.shared_projectors import FoldedMlpProjector
from mrs.architecture.vision.towers.siglip2_tower import read_siglip2
from mrs.architecture.vision.towers.siglip_tower import (
    GGUF_SIGLIP,
    SIGLIP_DEFAULTS,
    SIGLIP_IMAGES,
    siglip_names,
)
from mrs.architecture.vision.vision_family import GgufProjector, VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import ImageShape, PixelScale, Vision
from mrs.config.config import Config
from mrs.errors import NotReadable
from mrs.layers.norm.spec import Norm

BEGIN, TOKEN, END = "<|image_start|>", "<image>", "<|image_end|>"
WHOLE = "<|img_thumbnail|>"
#: Bounds on tiles and rows of an image; a broken config must not make a huge prompt.
MOST_TILES, MOST_ROWS = 256, 1 << 16
TOWER = "model.vision_tower.vision_model."


@dataclass(frozen=True)
class WholeAndTilesLayout:
    """An image has the size of `whole`, or is cut into tiles of `tile` x `tile` pixels.

    It is cut if it has more than `tolerance` times the pixels that `whole` allows, into
    `least_tiles` to `most_tiles` tiles, or never if `most_tiles` is 1. With `has_whole` an image
    that is cut is also encoded as a whole. A shape's `grid` is (rows, columns) of tiles, (0, 0)
    for an image that is not cut; the tower's input are the pixels of each patch.
    """

    whole: DynamicLayout
    tile: int
    least_tiles: int
    most_tiles: int
    tolerance: float
    has_whole: bool
    is_resizable: bool = True

    @property
    def scale(self) -> PixelScale:
        return self.whole.scale

    @property
    def resampling(self) -> str:
        return self.whole.resampling

    def shape(self, height: int, width: int) -> ImageShape:
        whole = self.whole.shape(height, width)
        if self.most_tiles == 1 or not self._is_large(height, width):
            return self._shape((0, 0), whole)
        grid = best_grid(height, width, self.tile, self.least_tiles, self.most_tiles)
        return self._shape(grid, whole)

    def largest(self, edge: int) -> ImageShape:
        """An upper bound: as many tiles as possible, and the largest whole image."""
        is_cut = self.most_tiles > 1 and self._is_large(edge, edge)
        return self._shape((1, self.most_tiles) if is_cut else (0, 0), self.whole.largest(edge))

    def _is_large(self, height: int, width: int) -> bool:
        # Edges that are rounded to nothing count as one patch.
        edges = (round(edge / self.whole.factor) * self.whole.factor for edge in (height, width))
        tall, wide = (max(edge, self.whole.patch_size) for edge in edges)
        return tall * wide > self.whole.max_pixels * self.tolerance

    def _shape(self, grid: tuple[int, int], whole: ImageShape) -> ImageShape:
        rows, columns = grid
        fold, side = self.whole.factor // self.whole.patch_size, self.tile // self.whole.patch_size
        views = ((side, side),) * (rows * columns)
        if not views or self.has_whole:
            views += ((whole.grid[0] * fold, whole.grid[1] * fold),)
        patches = sum(tall * wide for tall, wide in views)
        return ImageShape(
            pixels=(patches, 3 * self.whole.patch_size**2),
            patches=patches,
            rows=patches // fold**2,
            text=f"{BEGIN}{self._text(grid, whole, (side // fold) ** 2)}{END}",
            grid=grid,
            views=views,
        )

    def _text(self, grid: tuple[int, int], whole: ImageShape, tile_rows: int) -> str:
        rows, columns = grid
        if not rows:
            return whole.text
        tiles = "".join(
            f"<|img_row_{r}_col_{c}|>{TOKEN * tile_rows}"
            for r in range(1, rows + 1)
            for c in range(1, columns + 1)
        )
        return f"{tiles}{WHOLE}{whole.text}" if self.has_whole else tiles


def read_layout(images: Config, patch_size: int, fold: int) -> WholeAndTilesLayout:
    images.allow_only("encoder_patch_size", patch_size)
    images.allow_only("downsample_factor", fold)
    factor, tile = patch_size * fold, images.positive("tile_size", 512)
    least, most = images.positive("min_image_tokens", 64), images.positive("max_image_tokens", 256)
    tiles = images.positive("min_tiles", 2), images.positive("max_tiles", 10)
    if not images.flag("do_image_splitting", True):
        tiles = 1, 1
    if tile % factor or max(least, most) > MOST_ROWS or not _are_possible(*tiles):
        raise NotReadable(
            f"{least} to {most} rows of {factor} pixels and {tiles[0]} to {tiles[1]} tiles of "
            f"{tile} pixels do not fit together, or are out of range",
            where=images.where,
        )
    whole = DynamicLayout(
        patch_size=patch_size,
        factor=factor,
        min_pixels=least * factor**2,
        max_pixels=most * factor**2,
        scale=read_scale(images),
        resampling=read_resampling(images),
        token=TOKEN,
        least_squares=1,
    )
    tolerance = images.positive_number("max_pixels_tolerance", 2.0)
    has_whole = images.flag("use_thumbnail", True)
    return WholeAndTilesLayout(whole, tile, *tiles, tolerance, has_whole)


def _are_possible(least: int, most: int) -> bool:
    return least == most == 1 or 2 <= least <= most <= MOST_TILES


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model = configs.model
    tower, fold = read_siglip2(configs.tower), model.positive("downsample_factor", 2)
    projector = FoldedMlpProjector(
        tower.hidden_size,
        fold,
        model.activation("gelu", "projector_hidden_act"),
        Norm(1e-5, "layer", bias=True) if model.flag("projector_use_layernorm", True) else None,
        model.positive("projector_hidden_size", 2560),
        model.flag("projector_bias", True),
    )
    return Vision(
        tower,
        projector,
        read_layout(configs.images, tower.patch_size, fold),
        placeholder=TOKEN,
        image_token_id=model.integer("image_token_id", 396),
    )


def _gguf_configs(clip: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    model = {
        "downsample_factor": clip.positive("projector.scale_factor", 2),
        "projector_hidden_size": clip.positive("projector_rows"),
        "projector_use_layernorm": clip.flag("has_projector_norm"),
    }
    return model, {}


def _gguf_tower(clip: Config) -> Mapping[str, Any]:
    return {"num_patches": clip.positive("position_rows")}


def _stored_in_gguf(tower: Any) -> Any:
    """The tower with patches as convolutions have them."""
    return replace(tower, channels_first=True)


#: The mmproj files, as llama.cpp's converter writes them.
GGUF = GgufProjector(
    "lfm2",
    {
        **GGUF_SIGLIP,
        "projector.norm": "mm.input_norm",
        "projector.up": "mm.1",
        "projector.down": "mm.2",
    },
    TOKEN,
    _gguf_configs,
    _gguf_tower,
    _stored_in_gguf,
)


FAMILY = VisionFamily(
    "lfm2_vl",
    read,
    names={
        **siglip_names(TOWER),
        "projector.norm": "model.multi_modal_projector.layer_norm",
        "projector.up": "model.multi_modal_projector.linear_1",
        "projector.down": "model.multi_modal_projector.linear_2",
    },
    text="lfm2",
    text_start="model.language_model.",
    head="lm_head",
    tower_defaults=SIGLIP_DEFAULTS,
    image_defaults={**SIGLIP_IMAGES, "resample": 2},
    spellings={TOWER: "model.vision_tower."},
    unread=(f"{TOWER}head.", "model.vision_tower.head."),
    gguf=GGUF,
)

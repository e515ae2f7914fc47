"""Idefics 3 and SmolVLM: larger images in tiles, and several SigLIP patches per row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import (
    limit_upscaling,
    read_resampling,
    read_scale,
    read_size,
)
from mrs.architecture.vision.towers.siglip_tower import (
    GGUF_SIGLIP,
    SIGLIP_DEFAULTS,
    SIGLIP_IMAGES,
    read_siglip,
    siglip_names,
)
from mrs.architecture.vision.vision_family import GgufProjector, VisionConfigs, VisionFamily
from mrs.architecture.vision_slots import vision_slots
from mrs.architecture.vision_spec import ImageShape, PixelScale, Vision
from mrs.config.config import Config
from mrs.errors import NotReadable
from mrs.layers.slots import Slot

#: Bound on the edges of a scaled image, whatever a config says.
MOST_EDGE = 4096
#: Bound on the tiles along an edge; a broken config must not make a huge prompt.
MOST_TILES = 32
AROUND, WHOLE, TOKEN = "<fake_token_around_image>", "<global-img>", "<image>"


@dataclass(frozen=True)
class FoldedProjector:
    """A linear map of the concatenation of `fold` x `fold` patches (pixel shuffle).

    A tile has `side` x `side` patches.
    """

    input_size: int
    side: int
    fold: int


@vision_slots.register
def _(projector: FoldedProjector, hidden_size: int) -> Iterator[Slot]:
    yield Slot("projector", (hidden_size, projector.input_size * projector.fold**2))


@dataclass(frozen=True)
class SplitLayout:
    """Images are scaled to `longest_edge` and cut into tiles; one more tile has the whole image.

    Both edges are rounded up to multiples of `tile`. An image that fits one tile, and every image
    unless `is_split`, is encoded as one tile only. A tile needs `tile_rows` rows. A shape's `grid`
    is (rows, columns) of tiles, (0, 0) for an image that is not cut.
    """

    longest_edge: int
    tile: int
    patch_size: int
    tile_rows: int
    scale: PixelScale
    resampling: str
    is_split: bool = True

    @property
    def is_resizable(self) -> bool:
        return self.is_split and self.longest_edge > self.tile

    def shape(self, height: int, width: int) -> ImageShape:
        tall, wide = self.fitted(height, width)
        grid = tall // self.tile, wide // self.tile
        if not self.is_split or grid == (1, 1):
            grid = 0, 0
        views = 1 + grid[0] * grid[1]
        return ImageShape(
            pixels=(views, 3, self.tile, self.tile),
            patches=views * (self.tile // self.patch_size) ** 2,
            rows=views * self.tile_rows,
            text=self._text(*grid),
            grid=grid,
        )

    def largest(self, edge: int) -> ImageShape:
        """A square of any size, since all images are scaled to `longest_edge`."""
        return self.shape(edge, edge)

    def scaled(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) with a longer edge of `longest_edge`; the other edge is even."""
        tall, wide = _with_longest(height, width, self.longest_edge)
        if wide >= tall:
            tall += tall % 2
        else:
            wide += wide % 2
        tall, wide = max(tall, 1), max(wide, 1)
        if max(tall, wide) > MOST_EDGE:
            tall, wide = _with_longest(tall, wide, MOST_EDGE)
        return max(tall, 1), max(wide, 1)

    def fitted(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of all tiles together."""
        tall, wide = self.scaled(height, width)
        tall, wide = _with_longest(tall, wide, _rounded_up(max(tall, wide), self.tile))
        return _rounded_up(tall, self.tile), _rounded_up(wide, self.tile)

    def _text(self, rows: int, columns: int) -> str:
        features = TOKEN * self.tile_rows
        lines = [
            "".join(f"{AROUND}<row_{r}_col_{c}>{features}" for c in range(1, columns + 1)) + "\n"
            for r in range(1, rows + 1)
        ]
        whole = f"{AROUND}{WHOLE}{features}{AROUND}"
        return "".join(lines) + "\n" + whole if lines else whole


def _with_longest(height: int, width: int, edge: int) -> tuple[int, int]:
    """(height, width) of the same aspect ratio with a longer edge of `edge`."""
    ratio = width / height
    if width >= height:
        return int(edge / ratio), edge
    return edge, int(edge * ratio)


def _rounded_up(length: int, multiple: int) -> int:
    return max(ceil(length / multiple), 1) * multiple


@limit_upscaling.register
def _(layout: SplitLayout, edge: int) -> SplitLayout:
    """As many tiles along an edge as fit into `edge`, but at least one."""
    tiles = max(edge // layout.tile, 1)
    return replace(layout, longest_edge=min(layout.longest_edge, tiles * layout.tile))


def read_layout(images: Config, patch_size: int, fold: int) -> SplitLayout:
    images.allow_only("do_resize", True)
    tile = read_size(images, "max_image_size", "longest_edge")[0]
    longest_edge = read_size(images, "size", "longest_edge")[0]
    side = tile // patch_size
    if not side or side % fold:
        raise NotReadable(
            f"{side} patches along a tile's edge are not a multiple of scale_factor = {fold}",
            where=images.where,
        )
    if min(longest_edge, MOST_EDGE) > MOST_TILES * tile:
        raise NotReadable(
            f"images of {longest_edge} pixels would need too many tiles of {tile} pixels",
            where=images.where,
        )
    return SplitLayout(
        longest_edge=longest_edge,
        tile=tile,
        patch_size=patch_size,
        tile_rows=(side // fold) ** 2,
        scale=read_scale(images),
        resampling=read_resampling(images),
        is_split=images.flag("do_image_splitting", True),
    )


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    tower = read_siglip(configs.tower, fractional_positions=True)
    fold = configs.model.positive("scale_factor", 2)
    layout = read_layout(configs.images, tower.patches.size, fold)
    return Vision(
        tower,
        FoldedProjector(tower.hidden_size, layout.tile // layout.patch_size, fold),
        layout,
        placeholder=TOKEN,
        image_token_id=configs.model.integer("image_token_id", 128_257),
    )


def _gguf_configs(clip: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    tile = clip.positive("image_size")
    longest = clip.positive("preproc_image_size", tile)
    images = {"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": tile}}
    return {"scale_factor": clip.positive("projector.scale_factor", 2)}, images


#: The mmproj files, as llama.cpp's converter writes them.
GGUF = GgufProjector("idefics3", {**GGUF_SIGLIP, "projector": "mm.model.fc"}, TOKEN, _gguf_configs)


FAMILY = VisionFamily(
    "idefics3",
    read,
    names={
        **siglip_names("model.vision_model."),
        "projector": "model.connector.modality_projection.proj",
    },
    text_start="model.text_model.",
    head="lm_head",
    aliases=("smolvlm",),
    tower_defaults={
        **SIGLIP_DEFAULTS,
        "hidden_size": 1152,
        "num_attention_heads": 16,
        "patch_size": 32,
    },
    image_defaults={
        **SIGLIP_IMAGES,
        "size": {"longest_edge": 1456},
        "max_image_size": {"longest_edge": 364},
        "resample": 1,
    },
    gguf=GGUF,
)

"""Gemma 3: SigLIP features, average-pooled; bidirectional attention within an image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, floor, isqrt
from typing import Any

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import read_resampling, read_scale, read_size
from mrs.architecture.vision.towers.siglip_tower import (
    GGUF_SIGLIP,
    SIGLIP_DEFAULTS,
    SIGLIP_IMAGES,
    SiglipTower,
    read_siglip,
    siglip_names,
)
from mrs.architecture.vision.vision_family import GgufProjector, VisionConfigs, VisionFamily
from mrs.architecture.vision_slots import vision_slots
from mrs.architecture.vision_spec import ImageShape, PixelScale, Vision
from mrs.config.config import Config
from mrs.errors import NotReadable
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot

BEGIN, TOKEN, END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"
TOWER = "vision_tower.vision_model."


@dataclass(frozen=True)
class PooledProjector:
    """Average pooling over `pool` x `pool` patches, a norm and a linear map."""

    input_size: int
    side: int
    pool: int
    norm: Norm


@vision_slots.register
def _(projector: PooledProjector, hidden_size: int) -> Iterator[Slot]:
    yield Slot("projector.norm", (projector.input_size,), "vector", kind="offset_norm")
    yield Slot("projector", (hidden_size, projector.input_size))


@dataclass(frozen=True)
class PanAndScan:
    """When long images are also encoded as a row or column of crops.

    edge   shortest edge of a crop, in pixels
    most   largest number of crops
    ratio  aspect ratio from which on an image is cropped
    """

    edge: int
    most: int
    ratio: float

    def crops(self, length: int, width: int) -> int:
        """The number of crops along the longer edge, `length`; 0 if the image is not cropped."""
        if length / width < self.ratio:
            return 0
        count = min(floor(length / width + 0.5), length // self.edge)
        count = min(max(count, 2), self.most)
        return count if min(ceil(length / count), width) >= self.edge else 0


@dataclass(frozen=True)
class SquareLayout:
    """Images are resized to squares of `edge` pixels, each of which needs `rows` rows.

    A shape's `grid` is (rows, columns) of crops that are encoded in addition to the whole image.
    """

    edge: int
    patch_size: int
    rows: int
    scale: PixelScale
    resampling: str
    pan: PanAndScan | None = None
    is_resizable: bool = False

    def shape(self, height: int, width: int) -> ImageShape:
        down = across = 0
        if self.pan and width >= height:
            across = self.pan.crops(width, height)
            down = min(across, 1)
        elif self.pan:
            down = self.pan.crops(height, width)
            across = min(down, 1)
        views = 1 + down * across
        return ImageShape(
            pixels=(views, 3, self.edge, self.edge),
            patches=views * (self.edge // self.patch_size) ** 2,
            rows=views * self.rows,
            text=self._text(views),
            grid=(down, across),
        )

    def _text(self, views: int) -> str:
        one = f"\n\n{BEGIN}{TOKEN * self.rows}{END}\n\n"
        if views == 1:
            return one
        crops = " ".join([one] * (views - 1))
        between = "and here are some crops to help you see better"
        return f"Here is the original image {one} {between} {crops}"

    def largest(self, edge: int) -> ImageShape:
        """An image with the longest edge, just wide enough to be cropped."""
        return self.shape(min(self.pan.edge, edge) if self.pan else edge, edge)


def read_layout(configs: VisionConfigs, tower: SiglipTower) -> SquareLayout:
    images = configs.images
    images.allow_only("do_resize", True)
    height, width = read_size(images, "size", "height", "width")
    rows = configs.model.positive("mm_tokens_per_image", 256)
    if height != width or height != tower.image_size or isqrt(rows) ** 2 != rows:
        raise NotReadable(
            f"mm_tokens_per_image = {rows} does not fit images of {height} x {width} pixels "
            f"and a tower for {tower.image_size}",
            where=images.where,
        )
    if tower.side % isqrt(rows):
        raise NotReadable(
            f"{tower.side**2} patches cannot be pooled to mm_tokens_per_image = {rows}",
            where=images.where,
        )
    return SquareLayout(
        edge=height,
        patch_size=tower.patches.size,
        rows=rows,
        scale=read_scale(images),
        resampling=read_resampling(images),
        pan=_read_pan(images) if images.flag("do_pan_and_scan", False) else None,
    )


def _read_pan(images: Config) -> PanAndScan:
    pan = PanAndScan(
        images.positive("pan_and_scan_min_crop_size", 256),
        images.positive("pan_and_scan_max_num_crops", 4),
        images.positive_number("pan_and_scan_min_ratio_to_activate", 1.2),
    )
    if pan.edge < max(pan.most, 2):
        raise NotReadable(
            f"{pan.most} crops are too many for crops of {pan.edge} pixels", where=images.where
        )
    return pan


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    tower = read_siglip(configs.tower)
    layout = read_layout(configs, tower)
    norm = Norm(configs.tower.number("layer_norm_eps"))
    pool = tower.side // isqrt(layout.rows)
    return Vision(
        tower,
        PooledProjector(tower.hidden_size, tower.side, pool, norm),
        layout,
        placeholder=BEGIN,
        image_token_id=configs.model.integer("image_token_index", 262_144),
        is_bidirectional=True,
    )


def _gguf_configs(clip: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The number of rows follows from the pooling, 4 x 4 patches if the file does not say it."""
    edge, pool = clip.positive("image_size"), clip.positive("projector.scale_factor", 4)
    side = edge // clip.positive("patch_size") // pool
    return {"mm_tokens_per_image": side**2}, {"size": {"height": edge, "width": edge}}


#: The mmproj files, as llama.cpp's converter writes them.
GGUF = GgufProjector(
    "gemma3",
    {
        **GGUF_SIGLIP,
        "projector.norm": "mm.soft_emb_norm",
        "projector": "mm.input_projection^T",
    },
    TOKEN,
    _gguf_configs,
)


FAMILY = VisionFamily(
    "gemma3",
    read,
    names={
        **siglip_names(TOWER),
        "projector.norm": "multi_modal_projector.mm_soft_emb_norm",
        "projector.weight": "multi_modal_projector.mm_input_projection_weight^T",
    },
    text="gemma3_text",
    tower_defaults=SIGLIP_DEFAULTS,
    image_defaults={**SIGLIP_IMAGES, "size": {"height": 896, "width": 896}, "resample": 2},
    spellings={TOWER: "vision_tower."},
    unread=("vision_tower.vision_model.head.", "vision_tower.head."),
    gguf=GGUF,
)

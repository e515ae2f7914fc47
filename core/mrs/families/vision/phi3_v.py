"""Phi-3 and Phi-3.5 Vision: CLIP features of crops of a large image and of the whole image.

Configs do not describe the tower, which is always CLIP ViT-L/14 for 336 pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import CLIP_MEAN, CLIP_STD, read_scale
from mrs.architecture.vision.shared_projectors import CropsProjector, MlpProjector
from mrs.architecture.vision.towers.clip_tower import (
    CLIP_DEFAULTS,
    ClipTower,
    clip_names,
    clip_unread,
    read_clip,
)
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import ImageShape, PixelScale, Vision
from mrs.config.config import Config

#: ViT-L/14 for 336 pixels.
CLIP_LARGE = {
    **CLIP_DEFAULTS,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}


#: MERGED x MERGED patches become one feature.
MERGED = 2
START = "model.vision_embed_tokens."
#: The id of `<|image|>` in the published tokenizers; configs do not have it.
IMAGE_TOKEN_ID = 32_044


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


def read_layout(images: Config, tower: ClipTower, token: str) -> CropsLayout:
    return CropsLayout(
        edge=tower.image_size,
        patch_size=tower.patches.size,
        most_crops=images.positive("num_crops"),
        scale=read_scale(images),
        token=token,
    )


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    tower = read_clip(configs.tower, (-2,))
    return Vision(
        tower,
        CropsProjector(MlpProjector(tower.hidden_size * MERGED**2)),
        read_layout(configs.images, tower, "<|image|>"),
        placeholder="<|image_{n}|>",
        image_token_id=configs.model.integer("image_token_id", IMAGE_TOKEN_ID),
    )


FAMILY = VisionFamily(
    "phi3_v",
    read,
    names={
        **clip_names(f"{START}img_processor.vision_model."),
        "projector.up": f"{START}img_projection.0",
        "projector.down": f"{START}img_projection.2",
        "newline": f"{START}sub_GN",
        "between": f"{START}glb_GN",
    },
    text="phi3",
    text_start="model.",
    head="lm_head",
    tower_key="img_processor",
    tower_defaults=CLIP_LARGE,
    image_defaults={"image_mean": CLIP_MEAN, "image_std": CLIP_STD, "num_crops": 16},
    unread=(*clip_unread(f"{START}img_processor."), f"{START}wte."),
)

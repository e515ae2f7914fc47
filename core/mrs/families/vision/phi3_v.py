"""Phi-3 and Phi-3.5 Vision: CLIP on crops of a large picture and on the whole of it.

Configs do not describe the tower, which is always CLIP ViT-L/14 for 336 pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.slots import Slot
from mrs.architecture.vision.image_layouts import CLIP_MEAN, CLIP_STD, read_scale
from mrs.architecture.vision.shared_projectors import MlpProjector
from mrs.architecture.vision.towers.clip_tower import (
    CLIP_DEFAULTS,
    clip_ignored,
    clip_names,
    read_clip,
)
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_slots import vision_slots
from mrs.architecture.vision_spec import ImageShape, PixelScale, Vision

START = "model.vision_embed_tokens."
#: Patches in a square of so many by so many become one feature.
MERGED = 2
#: `<|image|>` of the published tokenizers, which no config names.
IMAGE_TOKEN_ID = 32_044


@dataclass(frozen=True)
class CropsLayout:
    """As large as `most_crops` squares of `edge` pixels allow, with white added to fill them.

    A shape's `grid` are rows and columns of crops, and the side of one in features.
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
        """Every picture is scaled up, so that its proportions alone matter: try all grids."""
        grids = [(rows, self.most_crops // rows) for rows in range(1, self.most_crops + 1)]
        return max((self._shape(*grid) for grid in grids), key=lambda shape: shape.rows)

    def scaled(self, height: int, width: int) -> tuple[tuple[int, int], bool]:
        """(height, width) before it is filled up, and whether it is lying on its side for that."""
        if width < height:
            (lying_height, lying_width), _ = self.scaled(width, height)
            return (lying_width, lying_height), True
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
            grid=(rows, columns, side),
        )


@dataclass(frozen=True)
class CropsProjector:
    """Squares of patches side by side, a learned vector after each row and one in between."""

    mlp: MlpProjector


@vision_slots.register
def _(part: CropsProjector, hidden_size: int) -> Iterator[Slot]:
    yield from vision_slots(part.mlp, hidden_size)
    yield Slot("newline", (part.mlp.input_size,), "vector", suffix="")
    yield Slot("between", (part.mlp.input_size,), "vector", suffix="")


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    tower = read_clip(configs.tower, (-2,))
    layout = CropsLayout(
        edge=tower.image_size,
        patch_size=tower.patches.size,
        most_crops=configs.images.positive("num_crops"),
        scale=read_scale(configs.images),
        token="<|image|>",
    )
    return Vision(
        tower,
        CropsProjector(MlpProjector(tower.hidden_size * MERGED**2)),
        layout,
        placeholder="<|image_{n}|>",
        image_token_id=configs.model.whole("image_token_id", IMAGE_TOKEN_ID),
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
    tower_defaults={
        **CLIP_DEFAULTS,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 336,
        "patch_size": 14,
    },
    image_defaults={"image_mean": CLIP_MEAN, "image_std": CLIP_STD, "num_crops": 16},
    ignored=(*clip_ignored(f"{START}img_processor."), f"{START}wte."),
)

"""Phi-4-multimodal's images: crops and the whole image. Its adapter is loaded as any other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import best_grid, read_scale, read_size
from mrs.architecture.vision.shared_projectors import CropsProjector, MlpProjector
from mrs.architecture.vision.towers.clip_tower import read_encoder_layer, read_layers
from mrs.architecture.vision.towers.siglip_tower import SIGLIP_DEFAULTS, SIGLIP_IMAGES, siglip_names
from mrs.architecture.vision.vision_family import ReadVision, VisionConfigs, VisionFamily
from mrs.architecture.vision_slots import patch_slot, vision_slots
from mrs.architecture.vision_spec import ImageShape, Patches, PixelScale, Tower, Vision
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.errors import NotReadable
from mrs.layers.layer import Layer
from mrs.layers.slots import Slot

#: Bound on the crops of an image; a broken config must not make a huge prompt.
MOST_CROPS = 256
START = "model.embed_tokens_extend."
TOKEN = "<|image|>"


@dataclass(frozen=True)
class Phi4Tower(Tower):
    """SigLIP's vision transformer on crops of `image_size` pixels, without the norm at the end.

    Each view of an image has its own rows and columns of patches, which take the learned embedding
    at the same relative row and column; further patches are padding, which nothing attends to.
    """

    hidden_size: int
    image_size: int
    patches: Patches
    layers: tuple[Layer, ...]

    @property
    def side(self) -> int:
        return self.image_size // self.patches.size


@vision_slots.register
def _(tower: Phi4Tower, hidden_size: int) -> Iterator[Slot]:
    yield patch_slot(tower.patches, tower.hidden_size)
    yield Slot("positions", (tower.side**2, tower.hidden_size), "dense")


def read_tower(tower: Config) -> Phi4Tower:
    """The tower up to the layer `feature_layer`, where -1 is the last of the config."""
    image_size, patch_size = tower.positive("image_size"), tower.positive("patch_size")
    if image_size % (2 * patch_size):
        raise NotReadable(
            f"image_size = {image_size} is not a multiple of two patches of {patch_size} pixels",
            where=tower.where,
        )
    tower.allow_only("crop_size", image_size)
    count, chosen = layer_count(tower), read_layers(tower, key="feature_layer")
    used = sum(index + count + 1 if index < 0 else index for index in chosen)
    if len(chosen) != 1 or not 0 < used <= count:
        raise NotReadable(
            f"feature_layer = {list(chosen)} is out of range: the tower has {count} layers",
            where=tower.where,
        )
    return Phi4Tower(
        tower.positive("hidden_size"),
        image_size,
        Patches(patch_size, tower.positive("num_channels"), bias=True),
        (read_encoder_layer(tower),) * used,
    )


@dataclass(frozen=True)
class PaddedCropsLayout:
    """Images are enlarged to fit the fewest crops of `edge` x `edge` pixels that hold them.

    If those are more than `most_crops`, the grid of crops has the aspect ratio nearest the image's.
    White padding fills the last crops; patches of nothing else are not encoded. A shape's `grid` is
    (rows of crops, columns of crops, features along a crop's edge, rows of features, columns of
    features).
    """

    edge: int
    patch_size: int
    most_crops: int
    scale: PixelScale
    token: str
    is_resizable: bool = True

    def shape(self, height: int, width: int) -> ImageShape:
        rows, columns = self._grid(height, width)
        tall, wide = self.scaled(height, width)
        return self._shape(
            rows, columns, ceil(tall / self.patch_size), ceil(wide / self.patch_size)
        )

    def largest(self, edge: int) -> ImageShape:
        """A column of as many crops as possible has most features: each row of them ends with one
        more."""
        most = ceil(edge / self.edge)
        rows, columns = (most, most) if most**2 <= self.most_crops else (self.most_crops, 1)
        side = self.edge // self.patch_size
        return self._shape(rows, columns, rows * side, columns * side)

    def scaled(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of the image inside its crops."""
        rows, columns = self._grid(height, width)
        tall, wide = rows * self.edge, columns * self.edge
        by_width, by_height = wide / width, tall / height
        if by_width < by_height:
            return max(1, int(height * by_width)), wide
        return tall, max(1, int(width * by_height))

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        rows, columns = ceil(height / self.edge), ceil(width / self.edge)
        if rows * columns <= self.most_crops:
            return rows, columns
        return best_grid(height, width, self.edge, 1, self.most_crops)

    def _shape(self, rows: int, columns: int, tall: int, wide: int) -> ImageShape:
        """The shape of an image with `tall` x `wide` patches that are not padding."""
        side = self.edge // self.patch_size
        crops = tuple(
            (max(1, min(side, tall - row * side)), max(1, min(side, wide - column * side)))
            for row in range(rows)
            for column in range(columns)
        )
        half, height, width = side // 2, ceil(tall / 2), ceil(wide / 2)
        features = height * (width + 1) + 1 + half * (half + 1)
        return ImageShape(
            pixels=(1 + len(crops), 3, self.edge, self.edge),
            patches=(1 + len(crops)) * side**2,
            rows=features,
            text=self.token * features,
            grid=(rows, columns, half, height, width),
            views=((side, side), *crops),
        )


def read_layout(images: Config, tower: Phi4Tower, token: str) -> PaddedCropsLayout:
    images.allow_only("patch_size", tower.patches.size)
    edges = {*read_size(images, "size", "height", "width"), tower.image_size}
    most = images.positive("dynamic_hd")
    if len(edges) > 1 or most > MOST_CROPS:
        raise NotReadable(
            f"{most} crops of {max(edges)} pixels do not fit the tower's {tower.image_size}, or "
            "are out of range",
            where=images.where,
        )
    return PaddedCropsLayout(tower.image_size, tower.patches.size, most, read_scale(images), token)


def reader(token: str, placeholder: str) -> ReadVision:
    """`token` is repeated in the prompt, `placeholder` stands for an image in a message."""

    def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
        tower = read_tower(configs.tower)
        return Vision(
            tower,
            CropsProjector(MlpProjector(tower.hidden_size), is_mean=True),
            read_layout(configs.images, tower, token),
            placeholder=placeholder,
            image_token_id=configs.tower.integer("image_token_id", 200_010),
        )

    return read


FAMILY = VisionFamily(
    "phi4_multimodal",
    reader(TOKEN, placeholder=TOKEN),
    names={
        **siglip_names(f"{START}image_embed.img_processor."),
        "projector.up": f"{START}image_embed.img_projection_up",
        "projector.down": f"{START}image_embed.img_projection_down",
        "newline": f"{START}image_embed.sub_img_feature_extensor",
        "between": f"{START}image_embed.global_img_feature_extensor",
    },
    text_types={"phi4_multimodal": "phi3"},
    text_start="model.",
    head="lm_head",
    text_defaults={"vocab_size": 200_064, "num_key_value_heads": 8},
    tower_defaults={
        **SIGLIP_DEFAULTS,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "image_size": 448,
        "patch_size": 14,
    },
    image_defaults={**SIGLIP_IMAGES, "size": {"height": 448, "width": 448}, "dynamic_hd": 36},
    ignored=(f"{START}image_embed.img_processor.", f"{START}audio_embed."),
)

"""LLaVA 1.5: CLIP features, through a two-layer MLP, in place of embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mrs.architecture.family import Names
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.image_layouts import (
    CLIP_IMAGES,
    read_resampling,
    read_scale,
    read_size,
)
from mrs.architecture.vision.shared_projectors import MlpProjector
from mrs.architecture.vision.towers.clip_tower import (
    CLIP_DEFAULTS,
    ClipTower,
    clip_names,
    clip_unread,
    read_clip,
    read_layers,
)
from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP
from mrs.architecture.vision.vision_family import (
    GgufProjector,
    ReadVision,
    VisionConfigs,
    VisionFamily,
)
from mrs.architecture.vision_spec import ImageLayout, ImageShape, PixelScale, Projector, Vision
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.errors import NotReadable

TOKEN = "<image>"
_TOWER = "vision_tower.vision_model."
#: The names that newer versions of transformers write.
_SPELLINGS = {_TOWER: "vision_tower."}
#: The (height, width) of resolutions, one after another; LLaVA 1.5 has none.
RESOLUTIONS = "image_grid_pinpoints"


@dataclass(frozen=True)
class CropLayout:
    """CLIP's: the shorter edge is scaled to `edge`, then the central `crop` x `crop` is cut out.

    Every image needs one row per patch of the crop, plus `extra_rows`.
    """

    edge: int
    crop: int
    patch_size: int
    scale: PixelScale
    resampling: str
    token: str
    is_resizable: bool = False
    extra_rows: int = 0

    def shape(self, height: int, width: int) -> ImageShape:
        side = self.crop // self.patch_size
        rows = side * side + self.extra_rows
        pixels = (1, 3, self.crop, self.crop)
        return ImageShape(pixels, side * side + 1, rows, self.token * rows, (side, side))

    def largest(self, edge: int) -> ImageShape:
        return self.shape(edge, edge)


def read_crop(configs: VisionConfigs, tower: ClipTower) -> int:
    """The edge of the squares that images are cut to; NotReadable if the tower has another."""
    edge = read_size(configs.images, "crop_size", "height")[0]
    if edge != tower.image_size:
        raise NotReadable(
            f"preprocessor_config.json does not match the tower: crop_size is {edge}, "
            f"but the tower encodes {tower.image_size} pixels",
            where=configs.images.where,
            hint="it may belong to another model",
        )
    return edge


def read_mlp(model: Config, tower: ClipTower) -> MlpProjector:
    return MlpProjector(
        tower.output_size,
        model.activation("gelu", "projector_hidden_act"),
        model.flag("multimodal_projector_bias", True),
    )


def llava_vision(
    configs: VisionConfigs, tower: ClipTower, projector: Projector, layout: ImageLayout
) -> Vision:
    return Vision(
        tower,
        projector,
        layout,
        placeholder=TOKEN,
        image_token_id=configs.model.integer("image_token_index", 32_000),
    )


def llava_family(name: str, read: ReadVision, names: Names, **fields: Any) -> VisionFamily:
    """A family with this tower and `names` of further slots."""
    return VisionFamily(
        name,
        read,
        names={
            **clip_names(_TOWER),
            "projector.up": "multi_modal_projector.linear_1",
            "projector.down": "multi_modal_projector.linear_2",
            **names,
        },
        tower_defaults=CLIP_DEFAULTS,
        image_defaults={
            **CLIP_IMAGES,
            "size": {"shortest_edge": 336},
            "crop_size": {"height": 336},
        },
        spellings=_SPELLINGS,
        unread=clip_unread("vision_tower."),
        **fields,
    )


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model, images = configs.model, configs.images
    model.allow_only("vision_feature_select_strategy", "default", "full")
    keeps_class = model.values.get("vision_feature_select_strategy") == "full"
    tower = read_clip(configs.tower, read_layers(model), keeps_class=keeps_class)
    layout = CropLayout(
        edge=read_size(images, "size", "shortest_edge")[0],
        crop=read_crop(configs, tower),
        patch_size=tower.patches.size,
        scale=read_scale(images),
        resampling=read_resampling(images),
        token=TOKEN,
        extra_rows=int(keeps_class),
    )
    return llava_vision(configs, tower, read_mlp(model, tower), layout)


def _gguf_configs(clip: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Files end with the last layer whose output is used."""
    edge, sizes = clip.positive("image_size"), clip.sequence(RESOLUTIONS, ())
    model = {
        "vision_feature_layer": clip.sequence("feature_layer", [layer_count(clip, "block_count")]),
        "multimodal_projector_bias": clip.flag("has_projector_bias"),
        RESOLUTIONS: list(zip(sizes[::2], sizes[1::2], strict=False)),
    }
    return model, {"size": {"shortest_edge": edge}, "crop_size": {"height": edge}}


def _gguf_tower(clip: Config) -> Mapping[str, Any]:
    names = {"use_gelu": "gelu", "use_silu": "silu"}
    chosen = (name for key, name in names.items() if clip.flag(key, False))
    return {"hidden_act": next(chosen, "quick_gelu")}


#: The mmproj files, as llama.cpp's script for them writes them.
GGUF = GgufProjector(
    "mlp",
    {
        **GGUF_SIGLIP,
        "class": "v.class_embd",
        "pre_norm": "v.pre_ln",
        "projector.up": "mm.0",
        "projector.down": "mm.2",
        "newline": "model.image_newline",
    },
    TOKEN,
    _gguf_configs,
    _gguf_tower,
    texts=("llama", "qwen2", "phi3"),
    unread=("v.post_ln.",),
    is_of=lambda clip: RESOLUTIONS not in clip,
)


FAMILY = llava_family("llava", read, {}, gguf=GGUF)

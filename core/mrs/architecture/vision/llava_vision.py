"""What LLaVA 1.5 and LLaVA-NeXT share: CLIP's tower, an MLP, and their names."""

from __future__ import annotations

from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.family import Names
from mrs.architecture.vision.image_layouts import CLIP_IMAGES, read_size
from mrs.architecture.vision.shared_projectors import MlpProjector
from mrs.architecture.vision.towers.clip_tower import (
    CLIP_DEFAULTS,
    ClipTower,
    clip_ignored,
    clip_names,
)
from mrs.architecture.vision.vision_family import ReadVision, VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import ImageLayout, Projector, Vision
from mrs.errors import NotReadable

TOKEN = "<image>"
_TOWER = "vision_tower.vision_model."
#: The names that newer versions of transformers write.
_SPELLINGS = {_TOWER: "vision_tower."}


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
        ignored=clip_ignored("vision_tower."),
        **fields,
    )

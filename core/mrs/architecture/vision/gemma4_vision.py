"""What all sizes of Gemma 4 share: the text around an image, and how its rows are attended to."""

from __future__ import annotations

from typing import Any

from mrs.architecture.family import Names
from mrs.architecture.vision.layouts.area import TOKEN, AreaLayout
from mrs.architecture.vision.towers.gemma4_tower import ScaledPoolProjector
from mrs.architecture.vision.vision_family import ReadVision, VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Tower, Vision


def gemma4_vision(
    configs: VisionConfigs,
    tower: Tower,
    projector: ScaledPoolProjector,
    layout: AreaLayout,
    attention: str | None,
) -> Vision:
    """`attention` is the default of `use_bidirectional_attention`."""
    text = configs.model.mapping("text_config")
    return Vision(
        tower,
        projector,
        layout,
        placeholder=TOKEN,
        image_token_id=configs.model.integer("image_token_id", 258_880),
        is_bidirectional=text.get("use_bidirectional_attention", attention) == "vision",
    )


def gemma4_family(name: str, read: ReadVision, names: Names, **fields: Any) -> VisionFamily:
    return VisionFamily(
        name,
        read,
        names={**names, "projector": "model.embed_vision.embedding_projection"},
        text_start="model.language_model.",
        head="lm_head",
        image_defaults={"max_soft_tokens": 280, "resample": 3},
        ignored=("model.audio_tower.", "model.embed_audio."),
        **fields,
    )

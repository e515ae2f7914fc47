"""Gemma 4: images of any aspect ratio and nearly one area, whose patches are averaged."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import read_norm
from mrs.architecture.vision.layouts.area import (
    TOKEN,
    read_area,
    read_normalization,
    require_positions,
)
from mrs.architecture.vision.towers.gemma4_projector import GEMMA4
from mrs.architecture.vision.towers.gemma4_tower import (
    GEMMA4_TOWER_DEFAULTS,
    ScaledPoolProjector,
    gemma4_names,
    read_gemma4_tower,
)
from mrs.architecture.vision.vision_family import VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision

TOWER = "model.vision_tower."


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    model, config = configs.model, configs.tower
    tower = read_gemma4_tower(config)
    mean, std = read_normalization(configs.images)
    # The tower's input is 2 x - 1, where x is what the image processor makes of pixels.
    middle = tuple(m + s / 2 for m, s in zip(mean, std, strict=True))
    layout = read_area(configs, middle, tuple(s / 2 for s in std))
    require_positions(layout.most_rows * layout.pool, tower.positions, config.where)
    return Vision(
        tower,
        ScaledPoolProjector(
            tower.hidden_size,
            read_norm(config),
            layout.pool,
            tower.hidden_size**0.5,
            config.flag("standardize", False),
        ),
        layout,
        placeholder=TOKEN,
        image_token_id=model.integer("image_token_id", 258_880),
        is_bidirectional=attends_both_ways(model, default=None),
    )


def attends_both_ways(model: Config, default: str | None) -> bool:
    """Whether the tokens of an image attend to each other in both directions."""
    text = model.mapping("text_config")
    return bool(text.get("use_bidirectional_attention", default) == "vision")


FAMILY = VisionFamily(
    "gemma4",
    read,
    names={
        **gemma4_names(TOWER),
        "standard.bias": f"{TOWER}std_bias",
        "standard.scale": f"{TOWER}std_scale",
        "projector": "model.embed_vision.embedding_projection",
    },
    text="gemma4_text",
    text_start="model.language_model.",
    head="lm_head",
    tower_defaults=GEMMA4_TOWER_DEFAULTS,
    image_defaults={"max_soft_tokens": 280, "resample": 3},
    ignored=("model.audio_tower.", "model.embed_audio."),
    gguf=GEMMA4,
)

"""Gemma 4: images of any aspect ratio and nearly one area, whose patches are averaged."""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import read_norm
from mrs.architecture.vision.gemma4_vision import gemma4_family, gemma4_vision
from mrs.architecture.vision.layouts.area import read_area, read_normalization, require_positions
from mrs.architecture.vision.towers.gemma4_projector import GEMMA4
from mrs.architecture.vision.towers.gemma4_tower import (
    GEMMA4_TOWER_DEFAULTS,
    ScaledPoolProjector,
    gemma4_names,
    read_gemma4_tower,
)
from mrs.architecture.vision.vision_family import VisionConfigs
from mrs.architecture.vision_spec import Vision

TOWER = "model.vision_tower."


def read(configs: VisionConfigs, text: ModelSpec) -> Vision:
    config = configs.tower
    tower = read_gemma4_tower(config)
    mean, std = read_normalization(configs.images)
    # The tower's input is 2 x - 1, where x is what the image processor makes of pixels.
    middle = tuple(m + s / 2 for m, s in zip(mean, std, strict=True))
    layout = read_area(configs, middle, tuple(s / 2 for s in std))
    require_positions(layout.most_rows * layout.pool, tower.positions, config.where)
    projector = ScaledPoolProjector(
        tower.hidden_size,
        read_norm(config),
        layout.pool,
        tower.hidden_size**0.5,
        config.flag("standardize", False),
    )
    return gemma4_vision(configs, tower, projector, layout, attention=None)


FAMILY = gemma4_family(
    "gemma4",
    read,
    {
        **gemma4_names(TOWER),
        "standard.bias": f"{TOWER}std_bias",
        "standard.scale": f"{TOWER}std_scale",
    },
    text="gemma4_text",
    tower_defaults=GEMMA4_TOWER_DEFAULTS,
    gguf=GEMMA4,
)

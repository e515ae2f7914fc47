"""The mmproj files of LFM2-VL, as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP
from mrs.architecture.vision.vision_family import GgufProjector


def _configs(clip: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    model = {
        "downsample_factor": clip.positive("projector.scale_factor", 2),
        "projector_hidden_size": clip.positive("projector_rows"),
        "projector_use_layernorm": clip.flag("has_projector_norm"),
    }
    return model, {}


def _tower(clip: Config) -> Mapping[str, Any]:
    return {"num_patches": clip.positive("position_rows")}


def _stored(tower: Any) -> Any:
    """The tower with patches as convolutions have them."""
    return replace(tower, channels_first=True)


LFM2 = GgufProjector(
    "lfm2",
    {
        **GGUF_SIGLIP,
        "projector.norm": "mm.input_norm",
        "projector.up": "mm.1",
        "projector.down": "mm.2",
    },
    "<image>",
    _configs,
    _tower,
    _stored,
)

"""The mmproj files of Idefics 3 and SmolVLM, as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP
from mrs.architecture.vision.vision_family import GgufProjector


def _configs(clip: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    tile = clip.positive("image_size")
    longest = clip.positive("preproc_image_size", tile)
    images = {"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": tile}}
    return {"scale_factor": clip.positive("projector.scale_factor", 2)}, images


IDEFICS3 = GgufProjector(
    "idefics3", {**GGUF_SIGLIP, "projector": "mm.model.fc"}, "<image>", _configs
)

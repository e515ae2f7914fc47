"""The mmproj files of Gemma 3, as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP
from mrs.architecture.vision.vision_family import GgufProjector


def _configs(clip: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The number of rows follows from the pooling, 4 x 4 patches if the file does not say it."""
    edge, pool = clip.positive("image_size"), clip.positive("projector.scale_factor", 4)
    side = edge // clip.positive("patch_size") // pool
    return {"mm_tokens_per_image": side**2}, {"size": {"height": edge, "width": edge}}


GEMMA3 = GgufProjector(
    "gemma3",
    {
        **GGUF_SIGLIP,
        "projector.norm": "mm.soft_emb_norm",
        "projector": "mm.input_projection^T",
    },
    "<image_soft_token>",
    _configs,
)

"""The mmproj files of LLaVA, as llama.cpp's script for them writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP
from mrs.architecture.vision.vision_family import GgufProjector

#: The (height, width) of resolutions, one after another; LLaVA 1.5 has none.
_RESOLUTIONS = "image_grid_pinpoints"


def _configs(clip: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Files end with the last layer whose output is used."""
    edge, sizes = clip.positive("image_size"), clip.sequence(_RESOLUTIONS, ())
    model = {
        "vision_feature_layer": clip.sequence("feature_layer", [layer_count(clip, "block_count")]),
        "multimodal_projector_bias": clip.flag("has_projector_bias"),
        _RESOLUTIONS: list(zip(sizes[::2], sizes[1::2], strict=False)),
    }
    return model, {"size": {"shortest_edge": edge}, "crop_size": {"height": edge}}


def _tower(clip: Config) -> Mapping[str, Any]:
    names = {"use_gelu": "gelu", "use_silu": "silu"}
    chosen = (name for key, name in names.items() if clip.flag(key, False))
    return {"hidden_act": next(chosen, "quick_gelu")}


def _is_next(vision: Mapping[str, Any]) -> bool:
    return _RESOLUTIONS in vision


LLAVA = GgufProjector(
    "mlp",
    {
        **GGUF_SIGLIP,
        "class": "v.class_embd",
        "pre_norm": "v.pre_ln",
        "projector.up": "mm.0",
        "projector.down": "mm.2",
        "newline": "model.image_newline",
    },
    "<image>",
    _configs,
    _tower,
    texts=("llama", "qwen2", "phi3"),
    ignored=("v.post_ln.",),
    is_of=lambda vision: not _is_next(vision),
)
LLAVA_NEXT = replace(LLAVA, is_of=_is_next)

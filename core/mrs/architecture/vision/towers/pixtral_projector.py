"""The mmproj files of Mistral 3, as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP
from mrs.architecture.vision.vision_family import GgufProjector


def _configs(clip: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    merged = {"spatial_merge_size": clip.positive("spatial_merge_size", 2)}
    return merged, {"size": {"longest_edge": clip.positive("image_size")}}


def _tower(clip: Config) -> Mapping[str, Any]:
    activation = "silu" if clip.flag("use_silu", False) else "gelu"
    return {"hidden_act": activation}


def _stored(tower: Any) -> Any:
    """The tower with the rows of q and k as the converter permutes them."""
    return replace(tower, adjacent=True)


PIXTRAL = GgufProjector(
    "pixtral",
    {
        **GGUF_SIGLIP,
        "pre_norm": "v.pre_ln",
        "ffn.gate": "ffn_gate",
        "projector.norm": "mm.input_norm",
        "projector.merge": "mm.patch_merger",
        "projector.up": "mm.1",
        "projector.down": "mm.2",
    },
    "[IMG]",
    _configs,
    _tower,
    _stored,
    texts=("llama", "ministral3", "mistral4"),
    # An embedding of the language model, for programs that encode images apart from it.
    ignored=("v.token_embd.img_break",),
)

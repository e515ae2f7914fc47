"""The mmproj files of Muse Glimmer, as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.vision.towers.muse_tower import TOKEN
from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP
from mrs.architecture.vision.vision_family import GgufProjector


def _merge(clip: Config) -> int:
    return clip.positive("spatial_merge_size", 2)


def _configs(clip: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The sizes of the adapter; layers and images are those of the published model."""
    folded = clip.positive("embedding_length") * _merge(clip) ** 2
    return {"out_hidden_size": folded, "projector_hidden_size": clip.positive("projector_rows")}, {}


def _tower(clip: Config) -> Mapping[str, Any]:
    merge = _merge(clip)
    side = clip.positive("image_size") // (clip.positive("patch_size") * merge)
    return {"merge_size": merge, "pos_emb_height": side, "pos_emb_width": side}


def _stored(tower: Any) -> Any:
    """The tower with permuted rows of q and k, and with one matrix for the sum of all frames."""
    patches = replace(tower.patches, frames=1, frames_first=False)
    return replace(tower, patches=patches, adjacent=True)


MUSE_GLIMMER = GgufProjector(
    "muse-glimmer",
    {
        **GGUF_SIGLIP,
        "pre_norm": "v.pre_ln",
        "projector.up": "mm.0",
        "projector.down": "mm.1",
        "projector.out": "mm.2",
    },
    TOKEN,
    _configs,
    _tower,
    _stored,
)

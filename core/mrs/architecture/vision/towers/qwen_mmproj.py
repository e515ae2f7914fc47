"""What the mmproj files of the Qwen-VL families share, as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count

GGUF_NAMES = {
    **GGUF_SIGLIP,
    "patches.1.weight": "v.patch_embd.weight.1",
    "mixer.qkv": "attn_qkv",
    "ffn.gate": "ffn_gate",
    "projector.norm": "v.post_ln",
    "projector.up": "mm.0",
    "projector.down": "mm.2",
}
_PIXEL_KEYS = {"min_pixels": "image_min_pixels", "max_pixels": "image_max_pixels"}

Configs = Callable[[Config], tuple[Mapping[str, Any], Mapping[str, Any]]]


def image_limits(least: int, most: int) -> Configs:
    """The pixels of an image; by default those of the published preprocessor_config.json."""

    def configs(clip: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        given = {key: clip.positive(name) for key, name in _PIXEL_KEYS.items() if clip.has(name)}
        return {}, {"size": {"shortest_edge": least, "longest_edge": most}, **given}

    return configs


def gguf_tower(clip: Config) -> dict[str, Any]:
    """The keys of a tower's config that all of them have."""
    return {
        "depth": layer_count(clip, "block_count"),
        "num_heads": clip.positive("attention.head_count"),
        "spatial_merge_size": clip.positive("spatial_merge_size", 2),
    }


def apart_frames(tower: Any) -> Any:
    """The tower with a matrix for each of its two frames."""
    return replace(tower, patches=replace(tower.patches, apart=True))

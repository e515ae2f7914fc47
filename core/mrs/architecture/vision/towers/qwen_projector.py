"""The mmproj files of the Qwen-VL families, as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.vision.towers.qwen_tower import TOKEN
from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP
from mrs.architecture.vision.video_layouts import TOKEN as VIDEO_TOKEN
from mrs.architecture.vision.vision_family import GgufProjector

_NAMES = {
    **GGUF_SIGLIP,
    "patches.1.weight": "v.patch_embd.weight.1",
    "mixer.qkv": "attn_qkv",
    "ffn.gate": "ffn_gate",
    "projector.norm": "v.post_ln",
    "projector.up": "mm.0",
    "projector.down": "mm.2",
}
_PIXELS = {"min_pixels": "image_min_pixels", "max_pixels": "image_max_pixels"}

Configs = Callable[[Config], tuple[Mapping[str, Any], Mapping[str, Any]]]


def image_limits(least: int, most: int) -> Configs:
    """The pixels of an image; by default those of the published preprocessor_config.json."""

    def configs(clip: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        given = {key: clip.positive(own) for key, own in _PIXELS.items() if clip.has(own)}
        return {}, {"size": {"shortest_edge": least, "longest_edge": most}, **given}

    return configs


def qwen_config(clip: Config) -> dict[str, Any]:
    return {
        "depth": layer_count(clip, "block_count"),
        "num_heads": clip.positive("attention.head_count"),
        "spatial_merge_size": clip.positive("spatial_merge_size", 2),
    }


def _tower_2(clip: Config) -> dict[str, Any]:
    """Qwen2-VL's, whose feed-forward length is not that of its files."""
    return {**qwen_config(clip), "embed_dim": clip.positive("embedding_length")}


def _tower_2_5(clip: Config) -> dict[str, Any]:
    """Qwen2.5-VL's: every `n_wa_pattern`-th layer attends to the whole image."""
    period = clip.positive("n_wa_pattern")
    full = range(period - 1, layer_count(clip, "block_count"), period)
    return {
        **qwen_config(clip),
        "fullatt_block_indexes": list(full),
        "window_size": clip.positive("window_size", 112),
    }


def _tower_3(clip: Config) -> dict[str, Any]:
    taps = clip.sequence("is_deepstack_layers", ())
    side = clip.positive("image_size") // clip.positive("patch_size")
    return {
        **qwen_config(clip),
        "num_position_embeddings": side**2,
        "deepstack_visual_indexes": [layer for layer, is_tapped in enumerate(taps) if is_tapped],
    }


def apart_frames(tower: Any) -> Any:
    """The tower with a matrix for each of its two frames."""
    return replace(tower, patches=replace(tower.patches, apart=True))


def _tapped_names(tapped: Sequence[int]) -> dict[str, str]:
    parts = {"norm": "norm", "up": "fc1", "down": "fc2"}
    return {
        f"projector.deep.{index}.{slot}": f"v.deepstack.{layer}.{name}"
        for index, layer in enumerate(tapped)
        for slot, name in parts.items()
    }


_LIMITS_2 = image_limits(56**2, 28**2 * 2**14)
QWEN2 = GgufProjector(
    "qwen2vl_merger", _NAMES, TOKEN, _LIMITS_2, _tower_2, apart_frames, video_token=VIDEO_TOKEN
)
QWEN2_5 = GgufProjector(
    "qwen2.5vl_merger", _NAMES, TOKEN, _LIMITS_2, _tower_2_5, apart_frames, video_token=VIDEO_TOKEN
)
QWEN3 = GgufProjector(
    "qwen3vl_merger",
    _NAMES,
    TOKEN,
    image_limits(2**16, 2**24),
    _tower_3,
    apart_frames,
    _tapped_names,
    interleaved_sections=True,
    video_token=VIDEO_TOKEN,
)

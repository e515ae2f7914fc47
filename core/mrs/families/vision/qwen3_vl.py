"""Qwen3-VL: Qwen 3, whose first layers get further features of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isqrt
from typing import Any

from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.vision.towers.qwen_mmproj import (
    GGUF_NAMES,
    apart_frames,
    gguf_tower,
    image_limits,
)
from mrs.architecture.vision.towers.qwen_tower import (
    IMAGE_DEFAULTS,
    NAMES,
    SPELLINGS,
    TOKEN,
    TOWER,
    TOWER_DEFAULTS,
    read_qwen,
    read_tower,
)
from mrs.architecture.vision.video_layouts import TOKEN as VIDEO_TOKEN
from mrs.architecture.vision.video_reader import read_stamped
from mrs.architecture.vision.vision_family import GgufProjector, VisionConfigs, VisionFamily
from mrs.architecture.vision_spec import Vision
from mrs.config.config import Config
from mrs.errors import NotReadable, Unsupported
from mrs.layers.mlp.spec import Mlp
from mrs.layers.norm.spec import Norm

#: The tokens of images and videos in Qwen 3.5.
TOKENS = {"image_token_id": 248_056, "video_token_id": 248_057}
#: How the published models take videos.
VIDEO_DEFAULTS = {
    "image_mean": (0.5,) * 3,
    "image_std": (0.5,) * 3,
    "size": {"shortest_edge": 2**12, "longest_edge": 3 * 2**23},
}
#: Layers of the tower with further features, if the config has no others.
TAPPED = (8, 16, 24)
#: Bound on the layers whose features go to layers of the language model.
MOST_TAPPED = 16


def read_qwen3(configs: VisionConfigs, text: ModelSpec) -> Vision:
    config = configs.tower
    mlp = Mlp(config.positive("intermediate_size"), config.activation(), gated=False, bias=True)
    norm = Norm(1e-6, "layer", bias=True)
    hidden_size = config.positive("hidden_size")
    tower = read_tower(config, hidden_size, mlp, norm)
    tower = replace(
        tower,
        patches=replace(tower.patches, bias=True),
        position_side=isqrt(config.positive("num_position_embeddings")),
        tapped=_read_tapped(config, len(tower.layers)),
    )
    vision = read_qwen(configs, text, tower, read_stamped)
    ropes = [layer.mixer.rope for layer in text.layers if layer.mixer.rope is not None]
    if not all(rope.interleaved_sections for rope in ropes):
        raise Unsupported("mrope_interleaved = false is not supported", where=configs.model.where)
    return vision


def _read_tapped(tower: Config, layers: int) -> tuple[int, ...]:
    """The layers whose features go to layers of the language model, in their order."""
    key = "deepstack_visual_indexes"
    tapped = tuple(Config({key: index}, tower.where).integer(key) for index in tower.sequence(key))
    is_ascending = sorted({*tapped}) == [*tapped]
    if not is_ascending or len(tapped) > MOST_TAPPED or not {*tapped} <= {*range(layers)}:
        raise NotReadable(
            f"{key} = {list(tapped)} must be ascending indices of {layers} layers, "
            f"at most {MOST_TAPPED}",
            where=tower.where,
        )
    return tapped


def _merger_names(slot: str, module: str) -> dict[str, str]:
    modules = {"norm": "norm", "up": "linear_fc1", "down": "linear_fc2"}
    return {f"{slot}.{part}": f"{TOWER}{module}.{name}" for part, name in modules.items()}


_NAMES = {
    **NAMES,
    "positions": f"{TOWER}pos_embed",
    "ffn.up": "mlp.linear_fc1",
    "ffn.down": "mlp.linear_fc2",
    **_merger_names("projector", "merger"),
    **{
        slot: name
        for index in range(MOST_TAPPED)
        for slot, name in _merger_names(
            f"projector.deep.{index}", f"deepstack_merger_list.{index}"
        ).items()
    },
}


def qwen3_family(name: str, tapped: Sequence[int] = (), **fields: Any) -> VisionFamily:
    """A family with this tower; `tapped` is the default of `deepstack_visual_indexes`."""
    tower = {
        **TOWER_DEFAULTS,
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "patch_size": 16,
        "hidden_act": "gelu_pytorch_tanh",
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": tapped,
    }
    return VisionFamily(
        name,
        read_qwen3,
        names=_NAMES,
        text_start="model.language_model.",
        head="lm_head",
        tower_defaults=tower,
        image_defaults=IMAGE_DEFAULTS,
        video_defaults=VIDEO_DEFAULTS,
        spellings=SPELLINGS,
        gguf=GGUF,
        **fields,
    )


def _gguf_tower(clip: Config) -> dict[str, Any]:
    taps = clip.sequence("is_deepstack_layers", ())
    side = clip.positive("image_size") // clip.positive("patch_size")
    return {
        **gguf_tower(clip),
        "num_position_embeddings": side**2,
        "deepstack_visual_indexes": [layer for layer, is_tapped in enumerate(taps) if is_tapped],
    }


def _tapped_names(tapped: Sequence[int]) -> dict[str, str]:
    parts = {"norm": "norm", "up": "fc1", "down": "fc2"}
    return {
        f"projector.deep.{index}.{slot}": f"v.deepstack.{layer}.{name}"
        for index, layer in enumerate(tapped)
        for slot, name in parts.items()
    }


#: The mmproj files, as llama.cpp's converter writes them.
GGUF = GgufProjector(
    "qwen3vl_merger",
    GGUF_NAMES,
    TOKEN,
    image_limits(2**16, 2**24),
    _gguf_tower,
    apart_frames,
    _tapped_names,
    interleaved_sections=True,
    video_token=VIDEO_TOKEN,
)

FAMILY = qwen3_family(
    "qwen3_vl",
    TAPPED,
    text="qwen3",
    text_types={"qwen3_vl_text": "qwen3"},
    text_defaults={
        "vocab_size": 151_936,
        "hidden_size": 4096,
        "intermediate_size": 22_016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 128_000,
        "rope_theta": 5e5,
    },
)

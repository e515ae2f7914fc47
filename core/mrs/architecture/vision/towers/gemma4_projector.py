"""The mmproj files of Gemma 4, as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.vision.towers.gemma4_tower import BOUNDS, LINEARS
from mrs.architecture.vision.towers.siglip_tower import GGUF_SIGLIP
from mrs.architecture.vision.vision_family import GgufProjector

#: Those of sounds.
_IGNORED = ("a.", "mm.a.")
_LAYER = {
    **{slot: name for slot, name in GGUF_SIGLIP.items() if slot.startswith(("mixer", "ffn"))},
    "ffn.gate": "ffn_gate",
}


def _configs(clip: Config) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Files do not say how images are attended to: those of sizes with layer inputs in order."""
    attention = None if clip.flag("has_layer_inputs") else "vision"
    return {"text_config": {"use_bidirectional_attention": attention}}, {"do_normalize": True}


def _usual(clip: Config) -> dict[str, Any]:
    return {
        "pooling_kernel_size": clip.positive("projector.scale_factor", 3),
        "rms_norm_eps": clip.number("attention.layer_norm_epsilon", 1e-6),
    }


def _tower(clip: Config) -> Mapping[str, Any]:
    heads = clip.positive("attention.head_count")
    return {
        **_usual(clip),
        "num_key_value_heads": heads,
        "head_dim": clip.head_dim(clip.positive("query_rows"), heads),
        "position_embedding_size": clip.positive("position_rows"),
        "use_clipped_linears": clip.flag("has_bounds"),
        "standardize": clip.flag("has_standard"),
    }


def _unified_tower(clip: Config) -> Mapping[str, Any]:
    return {
        **_usual(clip),
        "mm_embed_dim": clip.positive("embedding_length"),
        "mm_posemb_size": clip.positive("position_rows"),
    }


def _stored(tower: Any) -> Any:
    """The tower with patches as convolutions have them."""
    return replace(tower, channels_first=True)


GEMMA4 = GgufProjector(
    "gemma4v",
    {
        **GGUF_SIGLIP,
        **_LAYER,
        "positions": "v.position_embd.weight",
        "mixer.q_norm": "attn_q_norm",
        "mixer.k_norm": "attn_k_norm",
        "mixer.post_norm": "attn_post_norm",
        "ffn.post_norm": "ffn_post_norm",
        **{
            f"bounds.{slot}.{bound}.{{expert}}": f"v.blk.{{expert}}.{_LAYER[slot]}.{bound}"
            for slot in LINEARS
            for bound in BOUNDS
        },
        "standard.bias": "v.std_bias",
        "standard.scale": "v.std_scale",
        "projector": "mm.input_projection",
    },
    "<|image|>",
    _configs,
    _tower,
    _stored,
    ignored=_IGNORED,
)
GEMMA4_UNIFIED = GgufProjector(
    "gemma4uv",
    {
        "layer": "v.blk.{layer}.",
        "pre_norm": "v.patch_norm.1",
        "patches": "v.patch_embd",
        "norm": "v.patch_norm.2",
        "positions": "v.position_embd.weight",
        "post_norm": "v.patch_norm.3",
        "projector": "mm.input_projection",
    },
    "<|image|>",
    _configs,
    _unified_tower,
    _stored,
    texts=("gemma4_text",),
    ignored=_IGNORED,
)

"""Gemma 4, text: heads of other sizes in full layers, whose values may be their keys.

In small sizes the last layers share keys and values, and each layer has an embedding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mrs.architecture.decoder_config import SHARED_LAYERS_GGUF_KEYS, per_layer_decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import FULL, SLIDING, windows
from mrs.layers.attention.config import biased_attention, read_head_rope, share_kv
from mrs.layers.attention.spec import Attention, SharedAttention
from mrs.layers.mixer import FeedForward
from mrs.layers.mlp.config import read_gelu, read_mlp
from mrs.layers.moe.config import expert_count, read_expert, read_router
from mrs.layers.moe.spec import MlpAndMoe, Moe
from mrs.layers.norm.config import read_norm
from mrs.layers.rope.config import with_default_rope

#: The key that shows that a config comes from a GGUF file.
_SIGN = "rope_local_base_freq"
_KV_HEADS = {SLIDING: "num_key_value_heads", FULL: "num_global_key_value_heads"}
_DEFAULT_ROPE = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
#: Config key -> metadata key of GGUF files.
WIDE_HEADS_GGUF_KEYS = {
    **SHARED_LAYERS_GGUF_KEYS,
    "head_dim": "attention.key_length_swa",
    "global_head_dim": "attention.key_length",
}


def read(config: Config) -> ModelSpec:
    return read_gemma4(config, "gemma4_text")


def read_gemma4(config: Config, family: str) -> ModelSpec:
    config.allow_only("use_bidirectional_attention", "vision", False)
    config = usual_config(config)
    mixers, norm = share_kv(config, read_wide_heads(config)), read_norm(config)
    feed_forward = [
        read_mlp_and_moe(config, is_wide=isinstance(mixer, SharedAttention)) for mixer in mixers
    ]
    return per_layer_decoder(config, family, mixers, feed_forward, norm, output_scale=True)


def read_wide_heads(config: Config) -> list[Attention]:
    """The attention of each layer of a `usual_config`; every sixth and the last have no window."""
    config = with_default_rope(config, _DEFAULT_ROPE)
    local, full = _read_attention(config, SLIDING), _read_attention(_full_config(config), FULL)
    return [full if window is None else local for window in [*windows(config, period=6)[:-1], None]]


def usual_config(config: Config) -> Config:
    """The config under the keys of config.json, if it comes from a GGUF file."""
    if not config.has(_SIGN):
        return config
    # Both kinds of layers rotate whole heads, in part by factors that are almost 0.
    bases = config.number(_SIGN), config.positive_number("rope_theta")
    values: dict[str, Any] = {
        "enable_moe_block": expert_count(config) > 0,
        "rope_parameters": {
            SLIDING: {"rope_theta": bases[0]},
            FULL: {"rope_type": "factors", "rope_theta": bases[1]},
        },
    }
    sizes = config.sequence("intermediate_size_by_layer", ())
    if sizes and min(sizes) < max(sizes):
        values |= {"intermediate_size": min(sizes), "use_double_wide_mlp": True}
    heads = config.sequence("num_key_value_heads_by_layer", ())
    for count, kind in zip(heads, config.sequence("layer_types", ()), strict=False):
        values[_KV_HEADS[kind]] = count
    return config.without("rotary_dim").changed(values)


def _full_config(config: Config) -> Config:
    """The config with the head sizes of layers with full attention."""
    per_layer = config.mapping("per_layer_config")
    if per_layer:
        listed = (sizes for sizes in per_layer.values() if isinstance(sizes, Mapping))
        return config.changed(next(listed, {}))
    sizes: dict[str, Any] = {"head_dim": config.positive("global_head_dim", 512)}
    kv_heads = config.values.get(_KV_HEADS[FULL])
    if kv_heads and config.flag("attention_k_eq_v", False):
        sizes["num_key_value_heads"] = kv_heads
    return config.changed(sizes)


def _read_attention(config: Config, kind: str) -> Attention:
    is_full, norm = kind == FULL, read_norm(config)
    return biased_attention(
        config,
        scale=1.0,
        rope=read_head_rope(config, layer_type=kind),
        window=None if is_full else config.positive("sliding_window"),
        qk_norm=norm,
        value_norm=norm,
        always_causal=is_full,
        values_are_keys=is_full and config.flag("attention_k_eq_v", False),
    )


def read_mlp_and_moe(config: Config, *, is_wide: bool) -> FeedForward:
    """An MLP, twice as wide if it `is_wide` and the config wants that, and experts if there are."""
    activation, norm = read_gelu(config), read_norm(config)
    mlp = read_mlp(config, activation=activation)
    if config.flag("use_double_wide_mlp", False) and is_wide:
        mlp = replace(mlp, intermediate=2 * mlp.intermediate)
    if not config.flag("enable_moe_block", False):
        return mlp
    router = read_router(config, norm_topk_prob=True, input_norm=norm, expert_scale=True)
    return MlpAndMoe(mlp, Moe(router, read_expert(config, activation=activation)), norm)


#: An MLP, and experts outside of its module, with norms before and after both.
NAMES: Mapping[str, str] = {
    "ffn.norm": "pre_feedforward_layernorm",
    "ffn.router": "router.proj",
    "ffn.experts.{expert}.gate_up.weight": "experts.gate_up_proj",
    "ffn.experts.{expert}.down.weight": "experts.down_proj",
}


DEFAULTS = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
    "sliding_window": 512,
}

PER_LAYER = {"hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262_144}

FAMILY = Family(
    "gemma4_text",
    read,
    gguf_arch="gemma4",
    aliases=("gemma4",),
    defaults={**DEFAULTS, **PER_LAYER},
    safetensors=NAMES,
    gguf_keys=WIDE_HEADS_GGUF_KEYS,
)

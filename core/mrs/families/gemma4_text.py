"""Gemma 4, text: heads of other sizes in full layers, whose values may be their keys.

In small sizes the last layers share keys and values, and each layer has an embedding.
"""

from __future__ import annotations

from collections.abc import Mapping

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mixer import FeedForward
from mrs.architecture.mixers.mlp_and_moe_spec import MlpAndMoe
from mrs.architecture.mixers.mlp_spec import Activation
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.mixers.shared_attention_spec import SharedAttention
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.gemma4_gguf_reader import GEMMA4_GGUF_KEYS, gemma4_config
from mrs.architecture.readers.layer_reader import (
    decoder,
    read_attention,
    read_heads,
    read_mlp,
    read_norm,
    windows,
)
from mrs.architecture.readers.moe_reader import read_expert, read_router
from mrs.architecture.readers.rope_reader import read_rope, with_default_rope
from mrs.architecture.readers.shared_layers_reader import (
    read_gated_input,
    read_layer_inputs,
    share_kv,
)


def read(config: Config) -> ModelSpec:
    return read_gemma4(config, "gemma4_text")


def read_gemma4(config: Config, family: str) -> ModelSpec:
    config.allow_only("use_bidirectional_attention", "vision", False)
    config = with_default_rope(gemma4_config(config), DEFAULT_ROPE)
    norm = read_norm(config)
    local = _read_attention(config, "sliding_attention")
    full = _read_attention(_full_config(config), "full_attention")
    kinds = [*windows(config, period=6)[:-1], None]
    mixers = share_kv(config, [full if window is None else local for window in kinds])
    feed_forward = _read_feed_forward(config)
    last = _read_feed_forward(_double_wide(config))
    gated_input = read_gated_input(config, _read_activation(config), norm)
    layers = [
        Layer(
            mixer,
            last if isinstance(mixer, SharedAttention) else feed_forward,
            norm,
            style="sandwich",
            gated_input=gated_input,
            output_scale=True,
        )
        for mixer in mixers
    ]
    return decoder(
        config,
        family,
        layers,
        norm,
        embedding_scale=config.positive("hidden_size") ** 0.5,
        layer_inputs=read_layer_inputs(config, norm),
        logit_softcap=config.optional_number("final_logit_softcapping"),
    )


def _full_config(config: Config) -> Config:
    """The config with the head sizes of layers with full attention."""
    per_layer = config.mapping("per_layer_config")
    sizes = next((own for own in per_layer.values() if isinstance(own, Mapping)), {})
    kv_heads = config.values.get("num_global_key_value_heads")
    if not per_layer:
        sizes = {"head_dim": config.positive("global_head_dim", 512)}
        if kv_heads and config.flag("attention_k_eq_v", False):
            sizes["num_key_value_heads"] = kv_heads
    return Config({**config.values, **sizes}, config.where)


def _read_attention(config: Config, kind: str) -> Attention:
    is_full = kind == "full_attention"
    norm, bias = read_norm(config), config.flag("attention_bias", False)
    return read_attention(
        config,
        scale=1.0,
        rope=read_rope(config, read_heads(config)[2], layer_type=kind),
        window=None if is_full else config.positive("sliding_window"),
        qk_norm=norm,
        value_norm=norm,
        always_causal=is_full,
        values_are_keys=is_full and config.flag("attention_k_eq_v", False),
        qkv_bias=bias,
        out_bias=bias,
    )


def _double_wide(config: Config) -> Config:
    """The config of the layers that share keys and values."""
    if not config.flag("use_double_wide_mlp", False):
        return config
    size = 2 * config.positive("intermediate_size")
    return Config({**config.values, "intermediate_size": size}, config.where)


def _read_activation(config: Config) -> Activation:
    return config.activation("gelu_pytorch_tanh", "hidden_activation")


def _read_feed_forward(config: Config) -> FeedForward:
    activation = _read_activation(config)
    mlp, norm = read_mlp(config, activation=activation), read_norm(config)
    if not config.flag("enable_moe_block", False):
        return mlp
    router = read_router(config, norm_topk_prob=True, input_norm=norm, expert_scale=True)
    return MlpAndMoe(mlp, Moe(router, read_expert(config, activation=activation)), norm)


DEFAULT_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1e6,
    },
}
DEFAULTS = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
    "sliding_window": 512,
}
NAMES = {
    "output_scale": "layer_scalar",
    "ffn.norm": "pre_feedforward_layernorm",
    "ffn.norm_1": "post_feedforward_layernorm_1",
    "ffn.norm_in": "pre_feedforward_layernorm_2",
    "ffn.norm_2": "post_feedforward_layernorm_2",
    "ffn.router": "router.proj",
    "ffn.router.input_norm": "router.scale",
    "ffn.router.expert_scale": "router.per_expert_scale",
    "ffn.experts.{expert}.gate_up.weight": "experts.gate_up_proj",
    "ffn.experts.{expert}.down.weight": "experts.down_proj",
}

FAMILY = Family(
    "gemma4_text",
    read,
    gguf_arch="gemma4",
    aliases=("gemma4",),
    defaults={
        **DEFAULTS,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262_144,
    },
    safetensors=NAMES,
    gguf={
        "output_scale": "layer_output_scale.weight",
        "ffn.norm_1": "post_ffw_norm_1",
        "ffn.norm_in": "pre_ffw_norm_2",
        "ffn.norm_2": "post_ffw_norm_2",
        "ffn.router.input_norm": "ffn_gate_inp.scale",
        "ffn.router.expert_scale": "ffn_down_exps.scale",
    },
    gguf_keys=GEMMA4_GGUF_KEYS,
)

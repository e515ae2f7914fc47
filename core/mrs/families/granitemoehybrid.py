"""Granite 4: Granite with Mamba 2 in most layers, and in some sizes with experts."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mixer import FeedForward, Mixer
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import (
    decoder,
    layer_count,
    layer_types,
    read_attention,
    read_heads,
    read_norm,
)
from mrs.architecture.readers.mamba2_reader import read_mamba2
from mrs.architecture.readers.moe_reader import expert_count, read_expert, read_router
from mrs.architecture.readers.rope_reader import read_rope
from mrs.families import granite
from mrs.families.granite import read_multipliers

#: The two kinds of layers, in the spelling of the files and of newer configs.
ATTENTION, MAMBA = ("attention", "full_attention"), ("mamba", "linear_attention")


def read(config: Config) -> ModelSpec:
    norm, feed_forward = read_norm(config), _read_feed_forward(config)
    attention = _read_attention(config)
    mamba = None
    if not all(is_attention := _attention_layers(config)):
        bias = config.flag("mamba_proj_bias", False)
        mamba = read_mamba2(config, norm=norm, bias=bias, out_bias=bias)
    mixers: list[Mixer] = [attention if each or mamba is None else mamba for each in is_attention]
    scale = config.number("residual_multiplier", 1.0)
    layers = [Layer(mixer, feed_forward, norm, residual_scale=scale) for mixer in mixers]
    return decoder(config, "granitemoehybrid", layers, norm, **read_multipliers(config))


def _attention_layers(config: Config) -> list[bool]:
    if config.has("num_key_value_heads_by_layer"):  # in GGUF files
        return [heads > 0 for heads in config.sequence("num_key_value_heads_by_layer")]
    if not config.has("layer_types"):
        return [False] * layer_count(config)
    return [kind in ATTENTION for kind in layer_types(config, *ATTENTION, *MAMBA)]


def _read_attention(config: Config) -> Attention:
    head_dim = read_heads(config)[2]
    bias = config.flag("attention_bias", False)
    is_rotated = config.values.get("position_embedding_type") == "rope"
    has_rope = is_rotated or config.flag("rope_finetuned", False)
    return read_attention(
        config,
        scale=config.number("attention_multiplier", head_dim**-0.5),
        rope=read_rope(config, head_dim) if has_rope else None,
        qkv_bias=bias,
        out_bias=bias,
    )


def _read_feed_forward(config: Config) -> FeedForward:
    key = "shared_intermediate_size"
    shared = read_expert(config, key if config.has(key) else "intermediate_size")
    if not expert_count(config):
        return shared
    expert = replace(shared, intermediate=config.positive("intermediate_size"))
    return Moe(read_router(config, norm_topk_prob=True), expert, shared=shared)


MAMBA_NAMES = {
    "mixer.in": "mamba.in_proj",
    "mixer.conv": "mamba.conv1d",
    "mixer.step_bias": "mamba.dt_bias",
    "mixer.decay": "mamba.A_log",
    "mixer.skip": "mamba.D",
    "mixer.head_norm": "mamba.norm",
    "mixer.out": "mamba.out_proj",
}
GGUF_MAMBA_NAMES = {
    "mixer.in": "ssm_in",
    "mixer.conv": "ssm_conv1d",
    "mixer.skip": "ssm_d",
    "mixer.out": "ssm_out",
}
GGUF_MAMBA_KEYS = {
    "mamba_n_heads": "ssm.time_step_rank",
    "mamba_n_groups": "ssm.group_count",
    "mamba_inner_size": "ssm.inner_size",
    "mamba_d_state": "ssm.state_size",
    "mamba_d_conv": "ssm.conv_kernel",
}

FAMILY = Family(
    "granitemoehybrid",
    read,
    gguf_arch="granitehybrid",
    defaults={
        "attention_multiplier": 1.0,
        "num_local_experts": 8,
        "shared_intermediate_size": 1024,
        "mamba_n_heads": 128,
        "mamba_d_state": 256,
    },
    safetensors={
        **MAMBA_NAMES,
        "ffn.gate_up": "shared_mlp.input_linear",
        "ffn.down": "shared_mlp.output_linear",
        "ffn.shared.gate_up": "shared_mlp.input_linear",
        "ffn.shared.down": "shared_mlp.output_linear",
        "ffn.router": "block_sparse_moe.router.layer",
        "ffn.experts.{expert}.gate_up": "block_sparse_moe.input_linear",
        "ffn.experts.{expert}.down": "block_sparse_moe.output_linear",
    },
    gguf=GGUF_MAMBA_NAMES,
    gguf_keys={
        **granite.GGUF_KEYS,
        **GGUF_MAMBA_KEYS,
        "shared_intermediate_size": "expert_shared_feed_forward_length",
        "rope_finetuned": "rope.scaling.finetuned",
    },
    gguf_defaults={"rope_finetuned": True},
    gguf_rope_interleaved=True,
)

"""Falcon-H1: attention and Mamba 2 in parallel in each layer, and fixed factors everywhere."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.mamba2_spec import Mamba2
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.mixers.parallel_mixers_spec import ParallelMixers
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import (
    decoder,
    layer_count,
    read_attention,
    read_heads,
    read_mlp,
    read_norm,
)
from mrs.architecture.readers.mamba2_reader import read_mamba2
from mrs.families.granitemoehybrid import GGUF_MAMBA_KEYS, GGUF_MAMBA_NAMES, MAMBA_NAMES


def read(config: Config) -> ModelSpec:
    norm, bias = read_norm(config, default=1e-5), config.flag("attention_bias", False)
    # A factor of the keys is one of the scores.
    scale = read_heads(config)[2] ** -0.5 * config.number("key_multiplier", 1.0)
    mixer = ParallelMixers(
        read_attention(config, scale=scale, qkv_bias=bias, out_bias=bias),
        _read_mamba(config),
        attention_in=config.number("attention_in_multiplier", 1.0),
        attention_out=config.number("attention_out_multiplier", 1.0),
        state_in=config.number("ssm_in_multiplier", 1.0),
        state_out=config.number("ssm_out_multiplier", 1.0),
    )
    return decoder(
        config,
        "falcon_h1",
        [Layer(mixer, _read_mlp(config), norm)] * layer_count(config),
        norm,
        embedding_scale=config.number("embedding_multiplier", 1.0),
        logit_scale=config.number("lm_head_multiplier", 1.0),
    )


def _read_mamba(config: Config) -> Mamba2:
    if config.has("mamba_d_ssm"):
        inner = config.positive("mamba_d_ssm")
        config = Config({**config.values, "mamba_inner_size": inner}, config.where)
    has_norm = config.flag("mamba_rms_norm", False)
    key = "ssm_multipliers"
    factors = config.numbers(key, 5) if config.has(key) else ()
    return read_mamba2(
        config,
        norm=read_norm(config, default=1e-5) if has_norm else None,
        norm_before_gate=has_norm and config.flag("mamba_norm_before_gate", True),
        multipliers=factors if any(factor != 1.0 for factor in factors) else (),
        bias=config.flag("mamba_proj_bias", False),
        out_bias=config.flag("projectors_bias", False),
    )


def _read_mlp(config: Config) -> Mlp:
    key = "mlp_multipliers"
    gate_scale, out_scale = config.numbers(key, 2) if config.has(key) else (1.0, 1.0)
    bias = config.flag("mlp_bias", False)
    return read_mlp(config, bias=bias, gate_scale=gate_scale, out_scale=out_scale)


FAMILY = Family(
    "falcon_h1",
    read,
    gguf_arch="falcon-h1",
    defaults={
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "mamba_d_ssm": 1024,
        "mamba_n_heads": 128,
        "mamba_d_state": 256,
    },
    safetensors={
        "norm": "model.final_layernorm",
        **MAMBA_NAMES,
        "ffn.norm": "pre_ff_layernorm",
        "ffn.gate": "feed_forward.gate_proj",
        "ffn.up": "feed_forward.up_proj",
        "ffn.down": "feed_forward.down_proj",
    },
    # GGUF files have all factors in their weights.
    gguf={**GGUF_MAMBA_NAMES, "ffn.norm.weight": "ffn_norm"},
    gguf_keys=GGUF_MAMBA_KEYS,
    gguf_defaults={"mamba_norm_before_gate": False},
)

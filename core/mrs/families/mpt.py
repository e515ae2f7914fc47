"""MPT: scores that fall with distance, and no biases at all."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.readers.layer_reader import decoder, read_layer_norm, read_mlp
from mrs.architecture.readers.mpt_reader import (
    MPT_DEFAULTS,
    read_logit_scale,
    read_mpt_attention,
    read_mpt_positions,
    usual_config,
)


def read(config: Config) -> ModelSpec:
    config = usual_config(config)
    norm = read_layer_norm(config, bias=False)
    mlp = read_mlp(config, activation="gelu", gated=False)
    layers = [Layer(read_mpt_attention(config), mlp, norm)] * layer_count(config)
    scale, positions = read_logit_scale(config), read_mpt_positions(config)
    return decoder(config, "mpt", layers, norm, logit_scale=scale, input=positions)


FAMILY = Family(
    "mpt",
    read,
    gguf_arch="mpt",
    defaults=MPT_DEFAULTS,
    safetensors={
        "embedding": "transformer.wte",
        "positions": "transformer.wpe",
        "norm": "transformer.norm_f",
        "layer": "transformer.blocks.{layer}.",
        "mixer.norm": "norm_1",
        "mixer.qkv": "attn.Wqkv",
        "mixer.o": "attn.out_proj",
        "mixer.q_norm": "attn.q_ln",
        "mixer.k_norm": "attn.k_ln",
        "ffn.norm": "norm_2",
        "ffn.up": "ffn.up_proj",
        "ffn.down": "ffn.down_proj",
    },
    gguf_keys={
        "clip_qkv": "attention.clamp_kqv",
        "alibi_bias_max": "attention.max_alibi_bias",
    },
)

"""Gemma 2: Gemma with sliding windows on every other layer, soft caps and post-norms."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_kinds_reader import windows
from mrs.architecture.readers.layer_reader import (
    biased_attention,
    read_gelu,
    read_mlp,
    read_norm,
    scaled_decoder,
)
from mrs.architecture.readers.score_scale_reader import read_score_scale

#: Identifies the 27B model, whose query scale is not 1/sqrt(head_dim), in GGUF files.
LAYERS_OF_27B = 46


def read(config: Config) -> ModelSpec:
    config.require_off("use_bidirectional_attention")
    norm = read_norm(config)
    mlp = read_mlp(config, activation=read_gelu(config))
    scale = read_score_scale(config, LAYERS_OF_27B)
    softcap = config.optional_number("attn_logit_softcapping")
    mixers = [
        biased_attention(config, window=window, scale=scale, softcap=softcap)
        for window in windows(config, period=2)
    ]
    layers = [Layer(mixer, mlp, norm, style="sandwich") for mixer in mixers]
    return scaled_decoder(config, "gemma2", layers, norm)


FAMILY = Family(
    "gemma2",
    read,
    gguf_arch="gemma2",
    defaults={
        "head_dim": 256,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    safetensors={"ffn.norm": "pre_feedforward_layernorm"},
    gguf_keys={"attn_logit_softcapping": "attn_logit_softcapping"},
    norm_plus_one="all",
)

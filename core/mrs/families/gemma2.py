"""Gemma 2: Gemma with sliding windows on every other layer, soft caps and post-norms."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import (
    decoder,
    read_attention,
    read_mlp,
    read_norm,
    windows,
)

#: Identifies the 27B model, whose query scale is not 1/sqrt(head_dim), in GGUF files.
LAYERS_OF_27B = 46


def query_scale(config: Config, layers_of_27b: int) -> float:
    """The factor of attention scores: 1/sqrt(query_pre_attn_scalar).

    GGUF files lack that key: then it is 1/sqrt(head_dim), in the 27B model 1/sqrt(hidden / heads).
    """
    heads = config.positive("num_attention_heads")
    is_27b = config.positive("num_hidden_layers") == layers_of_27b
    head_dim = config.positive("head_dim", config.positive("hidden_size") // heads)
    per_head = config.positive("hidden_size") // heads if is_27b else head_dim
    return float(config.positive_number("query_pre_attn_scalar", per_head) ** -0.5)


def read(config: Config) -> ModelSpec:
    config.allow_only("use_bidirectional_attention", False)
    norm = read_norm(config)
    bias = config.flag("attention_bias", False)
    mlp = read_mlp(config, activation=config.activation("gelu_pytorch_tanh", "hidden_activation"))
    attention = {
        "scale": query_scale(config, LAYERS_OF_27B),
        "softcap": config.optional_number("attn_logit_softcapping"),
        "qkv_bias": bias,
        "out_bias": bias,
    }
    layers = [
        Layer(read_attention(config, window=window, **attention), mlp, norm, style="sandwich")
        for window in windows(config, period=2)
    ]
    return decoder(
        config,
        "gemma2",
        layers,
        norm,
        embedding_scale=config.positive("hidden_size") ** 0.5,
        logit_softcap=config.optional_number("final_logit_softcapping"),
    )


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
    gguf_keys={
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    norm_plus_one=True,
)

"""Gemma 2: Gemma with sliding windows on every other layer, soft caps and post-norms."""

from __future__ import annotations

from mrs.architecture.decoder_config import scaled_decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import windows
from mrs.layers.attention.config import biased_attention, read_heads
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_gelu, read_mlp
from mrs.layers.norm.config import read_norm

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


def read_score_scale(config: Config, layers_of_largest: int) -> float:
    """The factor of attention scores: 1/sqrt(query_pre_attn_scalar).

    GGUF files lack that key: then it is 1/sqrt(head_dim), and 1/sqrt(hidden_size / heads) in the
    largest model, which is known by its number of layers.
    """
    is_largest = config.positive("num_hidden_layers") == layers_of_largest
    heads, _, head_dim = read_heads(config)
    per_head = config.positive("hidden_size") // heads if is_largest else head_dim
    return float(config.positive_number("query_pre_attn_scalar", per_head) ** -0.5)


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

"""Gemma 3, text: Gemma 2 with QK norm, and five sliding-window layers per full-attention layer.

Sliding-window layers have a separate rope, which is never scaled.
"""

from __future__ import annotations

from mrs.architecture.decoder_config import scaled_decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.families.gemma2 import read_score_scale
from mrs.layers.attention.config import (
    read_attention,
    read_biases,
    read_encoder_attention,
    ropes_and_windows,
)
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_gelu, read_mlp
from mrs.layers.norm.config import read_norm

LAYERS_OF_27B = 62


def read(config: Config) -> ModelSpec:
    is_encoder = config.flag("use_bidirectional_attention", False)
    read_mixer = read_encoder_attention if is_encoder else read_attention
    norm, biases = read_norm(config), read_biases(config)
    mlp = read_mlp(config, activation=read_gelu(config))
    scale = read_score_scale(config, LAYERS_OF_27B)
    period = config.positive("sliding_window_pattern", 6)
    mixers = [
        read_mixer(config, rope=rope, window=window, scale=scale, qk_norm=norm, **biases)
        for rope, window in ropes_and_windows(config, period)
    ]
    layers = [Layer(mixer, mlp, norm, style="sandwich") for mixer in mixers]
    return scaled_decoder(config, "gemma3_text", layers, norm)


FAMILY = Family(
    "gemma3_text",
    read,
    gguf_arch="gemma3",
    aliases=("gemma3",),
    defaults={
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    },
    safetensors={"ffn.norm": "pre_feedforward_layernorm"},
    norm_plus_one="all",
)

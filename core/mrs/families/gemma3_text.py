"""Gemma 3, text: Gemma 2 with QK norm, and five sliding-window layers per full-attention layer.

Sliding-window layers have a separate rope, which is never scaled.
"""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Rope
from mrs.architecture.readers.layer_reader import (
    decoder,
    read_attention,
    read_encoder_attention,
    read_heads,
    read_mlp,
    read_norm,
    windows,
)
from mrs.architecture.readers.rope_reader import read_rope
from mrs.families.gemma2 import query_scale

LAYERS_OF_27B = 62


def read(config: Config) -> ModelSpec:
    is_encoder = config.flag("use_bidirectional_attention", False)
    read_mixer = read_encoder_attention if is_encoder else read_attention
    norm = read_norm(config)
    bias = config.flag("attention_bias", False)
    mlp = read_mlp(config, activation=config.activation("gelu_pytorch_tanh", "hidden_activation"))
    head_dim = read_heads(config)[2]
    full = read_rope(config, head_dim, default_base=1e6, layer_type="full_attention")
    local = local_rope(config, head_dim)
    attention = {
        "scale": query_scale(config, LAYERS_OF_27B),
        "qk_norm": norm,
        "qkv_bias": bias,
        "out_bias": bias,
    }
    layers = []
    for window in windows(config, period=config.positive("sliding_window_pattern", 6)):
        rope = local if window else full
        mixer = read_mixer(config, rope=rope, window=window, **attention)
        layers.append(Layer(mixer, mlp, norm, style="sandwich"))
    return decoder(
        config,
        "gemma3_text",
        layers,
        norm,
        embedding_scale=config.positive("hidden_size") ** 0.5,
        logit_softcap=config.optional_number("final_logit_softcapping"),
    )


def local_rope(config: Config, head_dim: int) -> Rope:
    """The rope of the layers with a sliding window."""
    if "sliding_attention" in config.mapping("rope_parameters"):
        return read_rope(config, head_dim, layer_type="sliding_attention")
    return Rope(head_dim, config.number("rope_local_base_freq", 1e4))


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
    gguf_keys={
        "rope_local_base_freq": "rope.freq_base_swa",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    norm_plus_one=True,
)

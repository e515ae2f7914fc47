"""The language model of Llama 3.2 Vision: Llama with additional cross-attention layers."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import read_attention
from mrs.layers.cross_attention.spec import CrossAttention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm

#: Tokens after the vocabulary: the image token, and unused ones.
EXTRA_TOKENS = 8


def read(config: Config) -> ModelSpec:
    norm, mlp, attention = read_norm(config), read_mlp(config), read_attention(config)
    sizes = attention.heads, attention.kv_heads, attention.head_dim
    cross_layer = Layer(CrossAttention(*sizes, attention.scale, norm), mlp, norm, "gated")
    self_layer = Layer(attention, mlp, norm)
    indices = config.sequence("cross_attention_layers")
    layers = [cross_layer if n in indices else self_layer for n in range(layer_count(config))]
    fields = {"tied_head": False, "extra_tokens": EXTRA_TOKENS}
    return decoder(config, "mllama_text_model", layers, norm, **fields)


FAMILY = Family(
    "mllama_text_model",
    read,
    defaults={
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
    },
    safetensors={
        "mixer.residual_gate": "cross_attn_attn_gate",
        "ffn.residual_gate": "cross_attn_mlp_gate",
    },
)

"""StarCoder 2: LayerNorm, MLP without gate, biases, and a sliding window on every layer."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count, read_window
from mrs.layers.attention.config import read_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_layer_norm


def read(config: Config) -> ModelSpec:
    norm = read_layer_norm(config, "norm_epsilon")
    bias = config.flag("use_bias", config.flag("attention_bias", True))
    attention = read_attention(config, qkv_bias=bias, out_bias=bias, window=read_window(config))
    activation = config.activation("gelu_pytorch_tanh")
    mlp = read_mlp(config, activation=activation, gated=False, bias=bias)
    return decoder(config, "starcoder2", [Layer(attention, mlp, norm)] * layer_count(config), norm)


FAMILY = Family(
    "starcoder2",
    read,
    gguf_arch="starcoder2",
    defaults={"num_key_value_heads": 2, "tie_word_embeddings": True},
    safetensors={"ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"},
    gguf_keys={"norm_epsilon": "attention.layer_norm_epsilon"},
)

"""Phi 1, 1.5 and 2: attention and MLP in parallel, LayerNorm, biases everywhere."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import read_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_layer_norm


def read(config: Config) -> ModelSpec:
    norm = read_layer_norm(config)
    attention = read_attention(
        config,
        qkv_bias=True,
        out_bias=True,
        qk_norm=norm if config.flag("qk_layernorm", False) else None,
    )
    mlp = read_mlp(config, activation=config.activation("gelu_new"), gated=False, bias=True)
    layer = Layer(attention, mlp, norm, style="parallel")
    return decoder(config, "phi", [layer] * layer_count(config), norm, head_bias=True)


FAMILY = Family(
    "phi",
    read,
    gguf_arch="phi2",
    aliases=("phi2",),
    defaults={"partial_rotary_factor": 0.5},
    safetensors={
        "norm": "model.final_layernorm",
        "mixer.o": "self_attn.dense",
        "mixer.q_norm": "self_attn.q_layernorm",
        "mixer.k_norm": "self_attn.k_layernorm",
        "ffn.up": "mlp.fc1",
        "ffn.down": "mlp.fc2",
    },
)

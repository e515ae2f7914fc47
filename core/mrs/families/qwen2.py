"""Qwen 2 and 2.5: Llama with biases on q, k and v; optional sliding windows on the upper layers.

MiMo 7B is a Qwen 2 with a draft head.
"""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.draft_head import HeadFiles
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import windows
from mrs.layers.attention.config import read_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    config.allow_only("attention_bias", True)
    norm, mlp = read_norm(config), read_mlp(config)
    layers = [
        Layer(read_attention(config, qkv_bias=True, window=window), mlp, norm)
        for window in windows(config)
    ]
    return decoder(config, "qwen2", layers, norm)


FAMILY = Family(
    "qwen2",
    read,
    aliases=("mimo",),
    gguf_arch="qwen2",
    other_gguf_archs=("qwen2vl",),
    defaults={
        "num_key_value_heads": 32,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
    head=HeadFiles(
        {
            "layer": "model.mtp_layers.0.",
            "join": "{layer}input_proj",
            "join.token_norm": "{layer}token_layernorm",
            "join.state_norm": "{layer}hidden_layernorm",
            "norm": "{layer}final_layernorm",
        },
        state_first=True,
    ),
    ignored=("model.mtp_layers.",),
)

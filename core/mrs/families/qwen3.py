"""Qwen 3: QK norm on every head, before rope."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import windows
from mrs.layers.attention.config import biased_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm, mlp = read_norm(config), read_mlp(config)
    layers = [
        Layer(biased_attention(config, qk_norm=norm, window=window), mlp, norm)
        for window in windows(config)
    ]
    return decoder(config, "qwen3", layers, norm)


FAMILY = Family(
    "qwen3",
    read,
    gguf_arch="qwen3",
    other_gguf_archs=("qwen3vl",),
    defaults={
        "num_key_value_heads": 32,
        "head_dim": 128,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    },
)

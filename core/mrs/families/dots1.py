"""dots.llm1: Qwen 3 attention with DeepSeek V3's experts."""

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
from mrs.families.deepseek_v2 import GGUF_KEYS, NAMES, dense_layers, read_moe


def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    bias = config.flag("attention_bias", False)
    dense, moe = read_mlp(config), read_moe(config)
    layers = [
        Layer(
            read_attention(config, qk_norm=norm, qkv_bias=bias, out_bias=bias, window=window),
            dense if is_dense else moe,
            norm,
        )
        for window, is_dense in zip(windows(config), dense_layers(config), strict=True)
    ]
    return decoder(config, "dots1", layers, norm)


FAMILY = Family(
    "dots1",
    read,
    gguf_arch="dots1",
    defaults={
        "num_key_value_heads": 32,
        "scoring_func": "sigmoid",
        "n_group": 1,
        "topk_group": 1,
        "sliding_window": 4096,
        "max_window_layers": 62,
    },
    safetensors=NAMES,
    gguf_keys=GGUF_KEYS,
)

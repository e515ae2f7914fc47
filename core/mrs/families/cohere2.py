"""Command R7B and A: attention and MLP in parallel, no rope in layers without a window."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import (
    decoder,
    read_attention,
    read_heads,
    read_layer_norm,
    read_mlp,
    windows,
)
from mrs.architecture.readers.rope_reader import read_rope


def read(config: Config) -> ModelSpec:
    norm = replace(read_layer_norm(config), bias=False)
    mlp, bias = read_mlp(config), config.flag("attention_bias", False)
    rope = read_rope(config, read_heads(config)[2], interleaved=True)
    layers = [
        Layer(
            read_attention(
                config,
                rope=rope if window else None,
                window=window,
                qkv_bias=bias,
                out_bias=bias,
            ),
            mlp,
            norm,
            style="parallel",
        )
        for window in windows(config, period=config.positive("sliding_window_pattern", 4))
    ]
    scale = config.number("logit_scale", 0.0625)
    return decoder(config, "cohere2", layers, norm, logit_scale=scale)


FAMILY = Family(
    "cohere2",
    read,
    gguf_arch="cohere2",
    defaults={"tie_word_embeddings": True, "sliding_window": 4096},
    gguf_keys={"logit_scale": "logit_scale"},
)

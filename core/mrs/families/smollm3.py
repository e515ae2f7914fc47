"""SmolLM 3: Llama without rope in every fourth layer; optional sliding windows in those layers."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import (
    decoder,
    layer_count,
    read_attention,
    read_heads,
    read_mlp,
    read_norm,
    read_window,
    windows,
)
from mrs.architecture.readers.rope_reader import read_rope
from mrs.errors import NotReadable


def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    bias = config.flag("attention_bias", False)
    mlp = read_mlp(config, bias=config.flag("mlp_bias", False))
    rope = read_rope(config, read_heads(config)[2], default_base=2e6)
    has_rope = _rope_layers(config)
    layers = [
        Layer(
            read_attention(
                config, rope=rope if rotates else None, window=window, qkv_bias=bias, out_bias=bias
            ),
            mlp,
            norm,
        )
        for rotates, window in zip(has_rope, _windows(config, has_rope), strict=True)
    ]
    return decoder(config, "smollm3", layers, norm)


def _rope_layers(config: Config) -> list[bool]:
    """Whether each layer has rope. Despite its name, `no_rope_layers` is 1 for those that do."""
    count = layer_count(config)
    if not config.has("no_rope_layers"):
        interval = config.positive("no_rope_layer_interval", 4)
        return [(layer + 1) % interval != 0 for layer in range(count)]
    flags = config.sequence("no_rope_layers")[:count]
    if len(flags) < count:
        raise NotReadable(
            f"no_rope_layers has {len(flags)} entries for {count} layers", where=config.where
        )
    return [bool(flag) for flag in flags]


def _windows(config: Config, has_rope: list[bool]) -> list[int | None]:
    if config.has("layer_types") or not config.flag("use_sliding_window", False):
        return windows(config)
    return [None if rotates else read_window(config) for rotates in has_rope]


FAMILY = Family(
    "smollm3",
    read,
    gguf_arch="smollm3",
    defaults={
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
    gguf_rope_interleaved=True,
)

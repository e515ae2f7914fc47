"""Granite SWA: Granite with attention sinks, windows, and a base of rope for each layer."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import of_layers, windows
from mrs.errors import Unsupported
from mrs.families.granite import (
    MULTIPLIERS_GGUF_KEYS,
    read_multipliers,
    read_scaled_attention,
    stack_scaled_layers,
)
from mrs.layers.attention.config import read_head_rope
from mrs.layers.mixer import FeedForward
from mrs.layers.mlp.config import read_mlp
from mrs.layers.moe.config import expert_count
from mrs.layers.norm.config import read_norm
from mrs.layers.rope.spec import Rope

#: The key that lists the base of each layer, 0 for none.
_BASES = "layer_rope_theta"
#: In GGUF files, which have one base: whether each layer has rope.
_ROTATING = "rotating_layers"


def read(config: Config) -> ModelSpec:
    if expert_count(config):  # files with experts have another form of the shared one
        raise Unsupported(
            "experts of Granite SWA in GGUF files are not supported", where=config.where
        )
    mlp = read_mlp(config, bias=config.flag("mlp_bias", False))
    return read_windowed_granite(config, "granite_swa", mlp)


def read_windowed_granite(config: Config, family: str, feed_forward: FeedForward) -> ModelSpec:
    """Layers with this feed-forward network."""
    norm = read_norm(config)
    mixers = [
        read_scaled_attention(config, rope=rope, window=window, sinks=True)
        for rope, window in _ropes_and_windows(config)
    ]
    layers = stack_scaled_layers(config, mixers, feed_forward, norm)
    return decoder(config, family, layers, norm, **read_multipliers(config))


def _ropes_and_windows(config: Config) -> list[tuple[Rope | None, int | None]]:
    """Rope and window of each layer. The first of four has no window if the config lists none.

    A layer whose base is 0 has no rope.
    """
    rope, local = read_head_rope(config), windows(config, period=4, full_first=True)
    if config.has(_ROTATING):
        ropes = [rope if rotates else None for rotates in of_layers(config, _ROTATING)]
        return list(zip(ropes, local, strict=True))
    if not config.has(_BASES):
        return [(rope, window) for window in local]
    ropes = [
        _with_base(rope, Config({_BASES: base}, config.where)) for base in of_layers(config, _BASES)
    ]
    return list(zip(ropes, local, strict=True))


def _with_base(rope: Rope, config: Config) -> Rope | None:
    if not config.number(_BASES):
        return None
    return replace(rope, base=config.positive_number(_BASES, above=1))


FAMILY = Family(
    "granite_swa",
    read,
    gguf_arch="granite_swa",
    gguf_keys={**MULTIPLIERS_GGUF_KEYS, _ROTATING: "attention.rope_pattern"},
    gguf_rope_interleaved=True,
    defaults={
        "attention_multiplier": 1.0,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "sliding_window": 128,
        "max_position_embeddings": 8192,
    },
)

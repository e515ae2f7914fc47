"""Read the attention of an encoder whose layers attend to all tokens or to those nearby."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.mixers.encoder_attention_spec import EncoderAttention
from mrs.architecture.readers.layer_kinds_reader import FULL, SLIDING, layer_count, layer_types
from mrs.architecture.readers.layer_reader import (
    read_biases,
    read_encoder_attention,
    read_head_rope,
)

#: The config key of the base of each kind's rope, and its default.
_BASES = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}


def read_local_encoder(config: Config) -> list[EncoderAttention]:
    """The attention of each layer; to all tokens in the first of every so many layers."""
    if config.has("layer_types"):
        kinds = list(layer_types(config, FULL, SLIDING))
    else:
        period = config.positive("global_attn_every_n_layers", 3)
        kinds = [SLIDING if index % period else FULL for index in range(layer_count(config))]
    return [_read_attention(config, kind) for kind in kinds]


def _read_attention(config: Config, kind: str) -> EncoderAttention:
    key, default = _BASES[kind]
    rope = read_head_rope(config, default_base=config.number(key, default), layer_type=kind)
    window = config.positive("local_attention")
    return read_encoder_attention(
        config, rope=rope, window=window if kind == SLIDING else None, **read_biases(config)
    )

"""Read attention whose scores fall with the distance of a key."""

from __future__ import annotations

from typing import Any

from mrs.architecture.alibi import MOST_POSITIONS, alibi_slopes
from mrs.architecture.config import Config
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.readers.layer_reader import read_attention, read_heads
from mrs.errors import NotReadable, Unsupported

#: Bound on the number of heads; a broken config must not make a huge list.
MOST_HEADS = 10_000


def with_derived_sizes(config: Config) -> Config:
    """The config with what follows from its others: an MLP four times as wide as x, and all heads
    with keys of their own.
    """
    sizes = {
        "intermediate_size": 4 * config.positive("hidden_size"),
        "num_key_value_heads": config.positive("num_attention_heads"),
    }
    return config.changed(sizes)


def read_alibi_attention(config: Config, largest: float = 8.0, **changes: Any) -> Attention:
    """Attention without rope; the exponents of its slopes end with `largest`."""
    heads, tokens = read_heads(config)[0], config.positive("max_position_embeddings", 2048)
    if tokens > MOST_POSITIONS:
        raise Unsupported(
            f"ALiBi over more than {MOST_POSITIONS} positions is not supported", where=config.where
        )
    if heads > MOST_HEADS:
        raise NotReadable(f"num_attention_heads = {heads} is out of range", where=config.where)
    return read_attention(config, rope=None, alibi=alibi_slopes(heads, largest), **changes)

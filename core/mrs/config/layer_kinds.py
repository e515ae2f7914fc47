"""Read how many layers a model has, and of which kinds they are: with windows, rope, attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mrs.config.config import Config
from mrs.errors import NotReadable, Unsupported

#: Bound on the number of layers; a broken config must not make a huge list.
MOST_LAYERS = 10_000

#: What lists of layers call attention to all tokens, to those of a window, and a state.
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
ATTENTION = (FULL, "attention")


def layer_count(config: Config, key: str = "num_hidden_layers") -> int:
    count = config.positive(key)
    if count > MOST_LAYERS:
        raise NotReadable(f"{key} = {count} is out of range", where=config.where)
    return count


def layer_types(config: Config, *known: str, key: str = "layer_types") -> Sequence[str]:
    """The config's type of each layer; Unsupported for a type that is not one of `known`."""
    types = of_layers(config, key)
    for kind in types:
        if kind not in known:
            raise Unsupported(f"layers of type {kind!r} are not supported", where=config.where)
    return types


def full_or_sliding(config: Config) -> Sequence[str]:
    """The types of the layers, FULL or SLIDING; all are FULL if the config does not list them."""
    if not config.has("layer_types"):
        return [FULL] * layer_count(config)
    return layer_types(config, FULL, SLIDING)


def of_layers(config: Config, key: str) -> Sequence[Any]:
    """A list with at least one entry for each layer, up to the last layer."""
    listed, count = config.sequence(key), layer_count(config)
    if len(listed) < count:
        raise NotReadable(f"{key} has {len(listed)} entries for {count} layers", where=config.where)
    return listed[:count]


def every(config: Config, period: int) -> list[bool]:
    """Whether each layer is the last one of `period` layers."""
    return [(layer + 1) % period == 0 for layer in range(layer_count(config))]


def read_window(config: Config) -> int | None:
    """The sliding window; None if all layers attend to all tokens (some GGUF files say 0)."""
    return config.integer("sliding_window", 0) or None


def windows(
    config: Config, period: int | None = None, *, full_first: bool = False
) -> list[int | None]:
    """The sliding window of each layer, or None for a layer with full attention.

    Decided by the first of these that is given: `use_sliding_window` = false (no windows),
    `layer_types`, `period` (the last of every `period` layers has full attention, or the first if
    it is `full_first`), `max_window_layers` (the layers from that index on have the window).
    """
    count, window = layer_count(config), read_window(config)
    if config.has("use_sliding_window") and not config.flag("use_sliding_window"):
        return [None] * count
    if config.has("layer_types"):
        return [window if kind == SLIDING else None for kind in layer_types(config, FULL, SLIDING)]
    if period is not None:
        full = 0 if full_first else period - 1
        return [None if layer % period == full else window for layer in range(count)]
    first = config.integer("max_window_layers", 0)
    return [window if layer >= first else None for layer in range(count)]


def rope_layers(config: Config) -> list[bool]:
    """Whether each layer has rope; the config's list of layers without it has 1 for those with."""
    if not config.sequence("no_rope_layers", ()):
        return [not each for each in every(config, config.positive("no_rope_layer_interval", 4))]
    return [bool(each) for each in of_layers(config, "no_rope_layers")]


def listed_layers(config: Config, key: str, default: Sequence[int] = ()) -> list[bool]:
    """Whether each layer is one of those whose indices the config lists."""
    indices = config.sequence(key, default)
    return [layer in indices for layer in range(layer_count(config))]


def attention_layers(config: Config, *known: str) -> list[bool] | None:
    """Whether each layer has attention instead of a state; None if the config does not list it.

    The list may have the types `known`. GGUF files list the heads of keys in each layer, which are
    0 without attention, or which layers are recurrent.
    """
    if config.has("num_key_value_heads_by_layer"):
        return [heads > 0 for heads in of_layers(config, "num_key_value_heads_by_layer")]
    recurrent = config.sequence("recurrent_layers", ())
    if recurrent:
        config = config.changed({"layer_types": [LINEAR if each else FULL for each in recurrent]})
    if not config.has("layer_types"):
        return None
    return [kind in ATTENTION for kind in layer_types(config, *known)]

"""The parts that most families share, read from their usual config keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.layers import Attention, Layer, Mlp, Norm
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.rope_reader import read_rope
from mrs.errors import NotReadable, Unsupported

#: More layers than any model has: a broken number must not make a long list.
MOST_LAYERS = 10_000


def read_norm(config: Config, key: str = "rms_norm_eps", default: float = 1e-6) -> Norm:
    return Norm(eps=config.number(key, default))


def read_layer_norm(config: Config, key: str = "layer_norm_eps") -> Norm:
    return Norm(eps=config.number(key, 1e-5), kind="layer", bias=True)


def read_heads(config: Config) -> tuple[int, int, int]:
    """(heads, kv_heads, head_dim); head_dim is hidden / heads where the config is silent."""
    heads = config.positive("num_attention_heads")
    head_dim = config.positive("head_dim", config.positive("hidden_size") // heads)
    kv_heads = config.positive("num_key_value_heads", heads)
    if heads % kv_heads:
        raise NotReadable(f"{heads} heads cannot share {kv_heads} key heads", where=config.where)
    return heads, kv_heads, head_dim


def read_attention(config: Config, **changes: Any) -> Attention:
    """Grouped attention scaled by 1/sqrt(head_dim); `changes` are fields that differ."""
    heads, kv_heads, head_dim = read_heads(config)
    fields: dict[str, Any] = {"scale": head_dim**-0.5, **changes}
    if "rope" not in fields:
        fields["rope"] = read_rope(config, head_dim)
    return Attention(heads, kv_heads, head_dim, **fields)


def read_mlp(config: Config, **changes: Any) -> Mlp:
    fields: dict[str, Any] = {"activation": config.activation(), **changes}
    return Mlp(config.positive("intermediate_size"), **fields)


def read_window(config: Config) -> int | None:
    """The sliding window, None (in some GGUF files 0) where every layer sees everything."""
    return config.whole("sliding_window", 0) or None


def decoder(
    config: Config, family: str, layers: Sequence[Layer], norm: Norm, **changes: Any
) -> ModelSpec:
    """A whole model around its layers; `changes` are ModelSpec fields that differ."""
    fields: dict[str, Any] = {"tied_head": config.flag("tie_word_embeddings", False), **changes}
    return ModelSpec(
        family=family,
        vocab_size=config.positive("vocab_size"),
        hidden_size=config.positive("hidden_size"),
        layers=tuple(layers),
        norm=norm,
        context_tokens=config.positive("max_position_embeddings", 2048),
        **fields,
    )


def layer_count(config: Config) -> int:
    count = config.positive("num_hidden_layers")
    if count > MOST_LAYERS:
        raise NotReadable(f"num_hidden_layers = {count} is no model's", where=config.where)
    return count


def windows(config: Config, period: int | None = None) -> list[int | None]:
    """Each layer's sliding window, from `layer_types` where given.

    Without it, every layer but each `period`-th has the window; or, without a period, a window
    that is in use (`use_sliding_window`) covers the layers from `max_window_layers` on.
    """
    count, window = layer_count(config), read_window(config)
    if config.has("use_sliding_window") and not config.flag("use_sliding_window"):
        return [None] * count
    if config.has("layer_types"):
        types = layer_types(config, "full_attention", "sliding_attention")
        return [window if kind == "sliding_attention" else None for kind in types]
    if period is not None:
        return [window if (layer + 1) % period else None for layer in range(count)]
    first = config.whole("max_window_layers", 0)
    return [window if layer >= first else None for layer in range(count)]


def layer_types(config: Config, *known: str) -> Sequence[str]:
    """One of the `known` kinds for each layer; Unsupported for another."""
    types = config.sequence("layer_types")
    if len(types) < layer_count(config):
        raise NotReadable(f"layer_types has {len(types)} entries", where=config.where)
    for kind in types:
        if kind not in known:
            raise Unsupported(f"layers of type {kind!r} are not supported", where=config.where)
    return types[: layer_count(config)]

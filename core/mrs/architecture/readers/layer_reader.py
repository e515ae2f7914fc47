"""Read what most families share (norms, attention, MLP, windows) from the usual config keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.encoder_attention_spec import EncoderAttention
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.rope_reader import read_rope
from mrs.errors import NotReadable, Unsupported

#: Bound on the number of layers; a broken config must not make a huge list.
MOST_LAYERS = 10_000


def read_norm(config: Config, key: str = "rms_norm_eps", default: float = 1e-6) -> Norm:
    return Norm(eps=config.number(key, default))


def read_layer_norm(
    config: Config, key: str = "layer_norm_eps", *, default: float = 1e-5, bias: bool = True
) -> Norm:
    return Norm(eps=config.number(key, default), kind="layer", bias=bias)


def read_heads(config: Config) -> tuple[int, int, int]:
    """(heads, kv_heads, head_dim); head_dim defaults to hidden_size // heads."""
    heads = config.positive("num_attention_heads")
    head_dim = config.positive("head_dim", config.positive("hidden_size") // heads)
    kv_heads = config.positive("num_key_value_heads", heads)
    if heads % kv_heads:
        raise NotReadable(
            f"num_attention_heads = {heads} is not a multiple of num_key_value_heads = {kv_heads}",
            where=config.where,
        )
    return heads, kv_heads, head_dim


def read_attention(config: Config, **changes: Any) -> Attention:
    """Grouped-query attention scaled by 1/sqrt(head_dim); `changes` override its fields."""
    return Attention(**_attention_fields(config, changes))


def read_encoder_attention(
    config: Config, *, window: int | None = None, **changes: Any
) -> EncoderAttention:
    """The same in both directions; half of the config's `window` is on either side of a token."""
    if window is not None:
        changes["window"] = window // 2 + 1
    return EncoderAttention(**_attention_fields(config, changes))


def _attention_fields(config: Config, changes: Mapping[str, Any]) -> dict[str, Any]:
    heads, kv_heads, head_dim = read_heads(config)
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": head_dim**-0.5}
    fields: dict[str, Any] = {**sizes, **changes}
    if "rope" not in fields:
        fields["rope"] = read_rope(config, head_dim)
    return fields


def read_mlp(config: Config, **changes: Any) -> Mlp:
    fields: dict[str, Any] = {"activation": config.activation(), **changes}
    return Mlp(config.positive("intermediate_size"), **fields)


def read_window(config: Config) -> int | None:
    """The sliding window; None if all layers attend to all tokens (some GGUF files say 0)."""
    return config.integer("sliding_window", 0) or None


def decoder(
    config: Config, family: str, layers: Sequence[Layer], norm: Norm | None, **changes: Any
) -> ModelSpec:
    """The spec of a model with these layers; `changes` override its fields."""
    fields: dict[str, Any] = {
        "tied_head": config.flag("tie_word_embeddings", False),
        "context_tokens": config.positive("max_position_embeddings", 2048),
        **changes,
    }
    return ModelSpec(
        family=family,
        vocab_size=config.positive("vocab_size"),
        hidden_size=config.positive("hidden_size"),
        layers=tuple(layers),
        norm=norm,
        **fields,
    )


def layer_count(config: Config, key: str = "num_hidden_layers") -> int:
    count = config.positive(key)
    if count > MOST_LAYERS:
        raise NotReadable(f"{key} = {count} is out of range", where=config.where)
    return count


def windows(config: Config, period: int | None = None) -> list[int | None]:
    """The sliding window of each layer, or None for a layer with full attention.

    Decided by the first of these that is given: `use_sliding_window` = false (no windows),
    `layer_types`, `period` (every `period`-th layer has full attention), `max_window_layers` (the
    layers from that index on have the window).
    """
    count, window = layer_count(config), read_window(config)
    if config.has("use_sliding_window") and not config.flag("use_sliding_window"):
        return [None] * count
    if config.has("layer_types"):
        types = layer_types(config, "full_attention", "sliding_attention")
        return [window if kind == "sliding_attention" else None for kind in types]
    if period is not None:
        return [window if (layer + 1) % period else None for layer in range(count)]
    first = config.integer("max_window_layers", 0)
    return [window if layer >= first else None for layer in range(count)]


def layer_types(config: Config, *known: str, key: str = "layer_types") -> Sequence[str]:
    """The config's type of each layer; Unsupported for a type that is not one of `known`."""
    types = config.sequence(key)
    if len(types) < layer_count(config):
        raise NotReadable(
            f"{key} has {len(types)} entries for {layer_count(config)} layers",
            where=config.where,
        )
    for kind in types:
        if kind not in known:
            raise Unsupported(f"layers of type {kind!r} are not supported", where=config.where)
    return types[: layer_count(config)]

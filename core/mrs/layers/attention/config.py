"""Read attention from the usual config keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mrs.config.config import Config
from mrs.config.layer_kinds import FULL, SLIDING, layer_count, read_window, windows
from mrs.errors import NotReadable, Unsupported
from mrs.layers.attention.alibi import MOST_POSITIONS, alibi_slopes
from mrs.layers.attention.spec import Attention, EncoderAttention, SharedAttention
from mrs.layers.mixer import Mixer
from mrs.layers.rope.config import read_rope
from mrs.layers.rope.spec import Rope


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


def read_head_rope(config: Config, **options: Any) -> Rope:
    """The rotary embedding of a head of the usual size; `options` are those of `read_rope`."""
    return read_rope(config, read_heads(config)[2], **options)


def read_ropes(config: Config) -> dict[str, Rope]:
    """The rope of layers with full attention, and that of layers with a window."""
    full = read_head_rope(config, default_base=1e6, layer_type=FULL)
    if SLIDING in config.mapping("rope_parameters"):
        return {FULL: full, SLIDING: read_head_rope(config, layer_type=SLIDING)}
    base = config.number("rope_local_base_freq", 1e4)
    return {FULL: full, SLIDING: Rope(read_heads(config)[2], base)}


def read_ropes_of_kinds(config: Config, default_base: float = 1e4) -> dict[str, Rope]:
    """The same, where files without parameters for windows leave rope in them unscaled.

    GGUF files may have another base for windows.
    """
    full = read_head_rope(config, default_base=default_base, layer_type=FULL)
    base = config.positive_number("rope_local_base_freq", full.base, above=1)
    local = replace(full, scaling=None, base=base)
    if SLIDING in config.mapping("rope_parameters"):
        local = read_head_rope(config, default_base=default_base, layer_type=SLIDING)
    return {FULL: full, SLIDING: local}


def ropes_and_windows(config: Config, period: int) -> list[tuple[Rope, int | None]]:
    """The rope and the window of each layer; every `period`-th has no window and another rope."""
    ropes = read_ropes(config)
    return [(ropes[SLIDING if window else FULL], window) for window in windows(config, period)]


def read_biases(config: Config) -> dict[str, bool]:
    """Whether all projections of attention have a bias: as changes of `read_attention`."""
    bias = config.flag("attention_bias", False)
    return {"qkv_bias": bias, "out_bias": bias}


def read_attention(config: Config, **changes: Any) -> Attention:
    """Grouped-query attention scaled by 1/sqrt(head_dim); `changes` override its fields."""
    return Attention(**attention_fields(config, **changes))


def biased_attention(config: Config, **changes: Any) -> Attention:
    """The same, with a bias in all projections if the config's `attention_bias` says so."""
    return read_attention(config, **read_biases(config), **changes)


def read_encoder_attention(
    config: Config, *, window: int | None = None, **changes: Any
) -> EncoderAttention:
    """The same in both directions; half of the config's `window` is on either side of a token."""
    if window is not None:
        changes["window"] = window // 2 + 1
    return EncoderAttention(**attention_fields(config, **changes))


def attention_fields(config: Config, **changes: Any) -> dict[str, Any]:
    """What all kinds of attention have; `changes` override it."""
    heads, kv_heads, head_dim = read_heads(config)
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": head_dim**-0.5}
    fields: dict[str, Any] = {**sizes, **changes}
    if "rope" not in fields:
        fields["rope"] = read_rope(config, head_dim)
    return fields


def read_windowed_rope(
    config: Config, local: Sequence[int | None], *, interleaved: bool = False, **changes: Any
) -> list[Attention]:
    """The attention of layers with the windows `local`; `changes` override its fields."""
    rope = read_head_rope(config, interleaved=interleaved)
    return [
        biased_attention(config, rope=rope if window else None, window=window, **changes)
        for window in local
    ]


def read_periodic_rope(config: Config, **changes: Any) -> list[Attention]:
    """The same, with windows in the layers that are listed, or in all but every fourth one.

    `sliding_window_pattern` is another period. In a model without windows all layers have rope.
    """
    if read_window(config) is None:
        return [biased_attention(config, **changes)] * layer_count(config)
    return read_windowed_rope(config, _windows(config), **changes)


def _windows(config: Config) -> list[int | None]:
    if config.has("layer_types"):
        return windows(config)
    return windows(config, period=config.positive("sliding_window_pattern", 4))


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


def share_kv(config: Config, mixers: Sequence[Attention]) -> list[Mixer]:
    """The mixers, of which the last `num_kv_shared_layers` read the cache of the last one alike."""
    first_shared = len(mixers) - config.integer("num_kv_shared_layers", 0)
    owners = {mixer: layer for layer, mixer in enumerate(mixers[: max(first_shared, 0)])}
    if first_shared < 1 or any(mixer not in owners for mixer in mixers[first_shared:]):
        raise NotReadable(
            f"num_kv_shared_layers = {len(mixers) - first_shared}, but no other layer is like the "
            "last ones",
            where=config.where,
        )
    return [
        *mixers[:first_shared],
        *(SharedAttention(mixer, owners[mixer]) for mixer in mixers[first_shared:]),
    ]

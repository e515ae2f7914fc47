"""Bytes that a layer remembers of past tokens, exact for every kind of layer.

A *cell* is one token's place in a cache. All functions are for one layer; `batch` counts the
sequences that are held at once.
"""

from __future__ import annotations

from functools import singledispatch

from mrs.architecture.layers import (
    Attention,
    CrossAttention,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    ShortConvolution,
)
from mrs.block_sizes import CacheSize
from mrs.formats import FORMATS, Format


def attention_kv_bytes(
    cells: int, kv_heads: int, key_dim: int, value_dim: int, kv_format: Format, *, batch: int = 1
) -> int:
    """Keys and values of grouped attention; `cells` of cross-attention are the encoder's tokens.

    A cell's numbers of all heads are one row: ValueError if that is no whole number of blocks.
    """
    keys = kv_format.size_bytes((batch, cells, kv_heads * key_dim))
    return keys + kv_format.size_bytes((batch, cells, kv_heads * value_dim))


def latent_kv_bytes(
    cells: int, kv_lora_rank: int, rope_dim: int, kv_format: Format, *, batch: int = 1
) -> int:
    """Multi-head latent attention: one latent vector a token and the rotated part of its key."""
    return kv_format.size_bytes((batch, cells, kv_lora_rank + rope_dim))


def recurrent_state_bytes(
    heads: int,
    key_dim: int,
    value_dim: int,
    *,
    state_format: Format = FORMATS["F32"],
    batch: int = 1,
) -> int:
    """The matrix (key_dim, value_dim) of each head of linear attention, whatever the length.

    A state-space layer is one head of its inner width times its state size.
    """
    return state_format.size_bytes((batch, heads, key_dim, value_dim))


def convolution_state_bytes(
    channels: int, kernel_tokens: int, state_format: Format, *, batch: int = 1
) -> int:
    """The `kernel_tokens - 1` last inputs of a causal convolution over tokens."""
    return state_format.size_bytes((batch, channels, kernel_tokens - 1))


def layer_kv_bytes(layer: Layer, size: CacheSize, kv_format: Format, *, image_keys: int = 0) -> int:
    """Bytes of one layer's caches of all sequences.

    `image_keys` counts the keys of all pictures of a sequence, for layers that look at them.
    """
    mixer = layer.mixer
    if not isinstance(mixer, (Attention, LatentAttention)):
        return mixer_kv_bytes(mixer, image_keys, kv_format, size.sequences)
    window = mixer.window if isinstance(mixer, Attention) else None
    cells = size.blocks(size.window_of(window)) * size.block_tokens
    return mixer_kv_bytes(mixer, cells, kv_format, 1)


@singledispatch
def mixer_kv_bytes(mixer: object, cells: int, kv_format: Format, batch: int) -> int:
    """Bytes of what a mixer remembers; one case a kind."""
    raise TypeError(f"no cache is known for {type(mixer).__name__}")


@mixer_kv_bytes.register(Attention)
@mixer_kv_bytes.register(CrossAttention)
def _(mixer: Attention | CrossAttention, cells: int, kv_format: Format, batch: int) -> int:
    sizes = mixer.kv_heads, mixer.head_dim, mixer.head_dim
    return attention_kv_bytes(cells, *sizes, kv_format, batch=batch)


@mixer_kv_bytes.register
def _(mixer: LatentAttention, cells: int, kv_format: Format, batch: int) -> int:
    return latent_kv_bytes(cells, mixer.kv_lora_rank, mixer.rope.dim, kv_format, batch=batch)


@mixer_kv_bytes.register
def _(mixer: ShortConvolution, cells: int, kv_format: Format, batch: int) -> int:
    return convolution_state_bytes(mixer.channels, mixer.kernel_tokens, kv_format, batch=batch)


@mixer_kv_bytes.register
def _(mixer: GatedDeltaNet, cells: int, kv_format: Format, batch: int) -> int:
    recent = convolution_state_bytes(mixer.channels, mixer.kernel_tokens, kv_format, batch=batch)
    sizes = mixer.value_heads, mixer.key_dim, mixer.value_dim
    return recent + recurrent_state_bytes(*sizes, batch=batch)

"""Bytes that a layer remembers of past tokens, exact for every kind of layer.

A *cell* is one token's place in a cache. All functions are for one layer; `batch` counts the
sequences that are held at once.
"""

from __future__ import annotations

from functools import singledispatch

from mrs.families.spec import (
    Attention,
    CrossAttention,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    Mixer,
    ShortConvolution,
)
from mrs.formats import FORMATS, Format
from mrs.request import PREFILL_CHUNK_TOKENS
from mrs.sizes.blocks import BLOCK_TOKENS, blocks_of, window_blocks


def cache_cells(
    context_tokens: int,
    *,
    window: int | None = None,
    chunk_tokens: int = 0,
    block_tokens: int = BLOCK_TOKENS,
) -> int:
    """Cells of one sequence, in whole blocks.

    A sliding-window layer keeps its window and one prefill chunk beside it, since every token of
    the chunk still attends to a whole window; a short context needs less.
    """
    if window is None or window + chunk_tokens >= context_tokens:
        return blocks_of(context_tokens, block_tokens) * block_tokens
    return window_blocks(context_tokens, window, chunk_tokens, block_tokens) * block_tokens


def attention_kv_bytes(
    cells: int, kv_heads: int, key_dim: int, value_dim: int, kv_format: Format, *, batch: int = 1
) -> int:
    """Keys and values of grouped attention; `cells` of cross-attention are the encoder's tokens.

    A cell's numbers of all heads are one row: ValueError if that is no whole number of blocks.
    """
    keys = kv_format.size_bytes((batch, cells, kv_heads * key_dim))
    return keys + kv_format.size_bytes((batch, cells, kv_heads * value_dim))


def latent_kv_bytes(
    cells: int, latent_dim: int, rope_dim: int, kv_format: Format, *, batch: int = 1
) -> int:
    """Multi-head latent attention: one latent vector a token and the rotated part of its key."""
    return kv_format.size_bytes((batch, cells, latent_dim + rope_dim))


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


def layer_kv_bytes(
    layer: Layer,
    context_tokens: int,
    kv_format: Format,
    *,
    batch: int = 1,
    chunk_tokens: int = PREFILL_CHUNK_TOKENS,
    block_tokens: int = BLOCK_TOKENS,
    image_keys: int = 0,
) -> int:
    """Bytes of one layer's cache for `batch` sequences of `context_tokens` each.

    `image_keys` counts the keys of all pictures of a sequence, for layers that look at them.
    """
    if isinstance(layer.mixer, CrossAttention):
        return mixer_kv_bytes(layer.mixer, image_keys, kv_format, batch)
    cells = cache_cells(
        context_tokens,
        window=_window(layer.mixer),
        chunk_tokens=chunk_tokens,
        block_tokens=block_tokens,
    )
    return mixer_kv_bytes(layer.mixer, cells, kv_format, batch)


def _window(mixer: Mixer) -> int | None:
    return mixer.window if isinstance(mixer, Attention) else None


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
    return latent_kv_bytes(cells, mixer.latent_dim, mixer.rope.dim, kv_format, batch=batch)


@mixer_kv_bytes.register
def _(mixer: ShortConvolution, cells: int, kv_format: Format, batch: int) -> int:
    return convolution_state_bytes(mixer.channels, mixer.kernel_tokens, kv_format, batch=batch)


@mixer_kv_bytes.register
def _(mixer: GatedDeltaNet, cells: int, kv_format: Format, batch: int) -> int:
    recent = convolution_state_bytes(mixer.channels, mixer.kernel_tokens, kv_format, batch=batch)
    sizes = mixer.value_heads, mixer.key_dim, mixer.value_dim
    return recent + recurrent_state_bytes(*sizes, batch=batch)

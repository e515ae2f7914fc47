"""Bytes of the caches of one layer, from the cache shape of its mixer."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.formats import FORMATS, KVFormat
from mrs.layers.layer import Layer
from mrs.plan.memory.cache_size import CacheSize


def layer_kv_bytes(
    layer: Layer, size: CacheSize, kv_format: KVFormat, *, image_keys: int = 0
) -> int:
    """Bytes of one layer's caches of all sequences.

    `image_keys` counts the keys of all images of a sequence, for cross-attention layers.
    """
    shape = layer.mixer.cache_shape
    window = size.window_of(shape.window)
    blocks = size.blocks(window) if shape.token_rows else 0
    own_bytes = kv_format.rows_bytes(shape.image_rows, image_keys) + FORMATS["F32"].size_bytes(
        (shape.state_values,)
    )
    token_bytes = kv_format.rows_bytes(shape.token_rows, blocks * size.block_tokens)
    if kv_format.is_quantized and blocks:
        rests = KVFormat(FORMATS["Q8_0"], FORMATS["Q8_0"])
        token_bytes += rests.rows_bytes(shape.token_rows, size.rest_tokens(window))
    return token_bytes + size.sequences * own_bytes


def state_bytes(layers: Sequence[Layer]) -> int:
    """Bytes of the recurrent states of one sequence in these layers."""
    values = sum(layer.mixer.cache_shape.state_values for layer in layers)
    return FORMATS["F32"].size_bytes((values,))


def decoded_cache_bytes(
    layers: Sequence[Layer], kv_format: KVFormat, tokens: int, *, image_keys: int = 0
) -> int:
    """Bytes of caches that decoding one token of a sequence of `tokens` reads in all layers."""
    size = CacheSize(tokens, sequences=1, chunk_tokens=1, block_tokens=1)
    return sum(layer_kv_bytes(layer, size, kv_format, image_keys=image_keys) for layer in layers)

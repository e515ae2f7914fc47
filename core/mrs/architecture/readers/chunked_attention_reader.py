"""Read attention within chunks, and to all tokens in layers without rope."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.config import Config
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.norm_rope import Norm, QueryScale
from mrs.architecture.readers.layer_kinds_reader import FULL, layer_types, rope_layers
from mrs.architecture.readers.layer_reader import biased_attention, read_head_rope
from mrs.errors import Unsupported

_CHUNKED = "chunked_attention"


def read_chunked_attention(
    config: Config, norm: Norm, *, has_qk_norm: bool, block_tokens: int
) -> list[Attention]:
    """The attention of each layer, within chunks of whole blocks of so many tokens.

    Heads that rotate have a QK norm without weights if the config says so, by default if
    `has_qk_norm`. Queries that do not rotate grow with their position.
    """
    has_rope = rope_layers(config)
    has_qk_norm = config.flag("use_qk_norm", has_qk_norm)
    rope = read_head_rope(config, default_base=5e5, interleaved=True)
    rotating = {
        "rope": rope,
        "qk_norm": replace(norm, learned=False) if has_qk_norm else None,
        "qk_norm_after_rope": has_qk_norm,
    }
    still = {"rope": None, "query_scale": _read_query_scale(config)}
    return [
        biased_attention(config, chunk=chunk, **(rotating if rotates else still))
        for rotates, chunk in zip(has_rope, _chunks(config, has_rope, block_tokens), strict=True)
    ]


def _read_query_scale(config: Config) -> QueryScale | None:
    if not config.flag("attn_temperature_tuning", True):
        return None
    length = config.positive_number("floor_scale", 8192)
    return QueryScale(config.number("attn_scale", 0.1), length, offset=1)


def _chunks(config: Config, has_rope: list[bool], block_tokens: int) -> list[int | None]:
    """The size of each layer's chunks; None for a layer that attends to all tokens."""
    chunk = config.integer("attention_chunk_size", 0) or None
    if chunk is not None and chunk % block_tokens:
        raise Unsupported(
            f"attention_chunk_size = {chunk} is not a multiple of {block_tokens}",
            where=config.where,
        )
    if not config.has("layer_types"):
        return [chunk if rotates else None for rotates in has_rope]
    types = layer_types(config, FULL, _CHUNKED)
    return [chunk if kind == _CHUNKED else None for kind in types]

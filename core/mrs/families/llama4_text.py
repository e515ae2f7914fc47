"""Llama 4, text: attention within chunks, and layers without rope that attend to all tokens."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.decoder_config import decoder, stack_layers
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import FULL, layer_types, rope_layers
from mrs.errors import Unsupported
from mrs.layers.attention.config import biased_attention, read_head_rope
from mrs.layers.attention.spec import Attention
from mrs.layers.mlp.config import read_mlp
from mrs.layers.mlp.spec import mlp_names
from mrs.layers.moe.config import expert_count, mixed_layers, read_router
from mrs.layers.moe.spec import Moe
from mrs.layers.norm.config import read_norm
from mrs.layers.norm.spec import Norm
from mrs.layers.rope.spec import QueryScale
from mrs.request import BLOCK_TOKENS

_CHUNKED = "chunked_attention"
EXPERTS_OF_MAVERICK = 128


def read(config: Config) -> ModelSpec:
    # MobileLLM says 0: neither chunks nor layers without rope.
    config.allow_only("sliding_window", 8192)
    norm, expert = read_norm(config, default=1e-5), read_mlp(config)
    moe = Moe(read_router(config, scoring="sigmoid"), expert, shared=expert, weighs_input=True)
    feed_forward = mixed_layers(config, moe, read_mlp(config, "intermediate_size_mlp"))
    # GGUF files do not say that Maverick has no norm.
    has_norm = expert_count(config) != EXPERTS_OF_MAVERICK
    mixers = read_chunked_attention(config, norm, has_qk_norm=has_norm)
    layers = stack_layers(mixers, feed_forward, norm)
    return decoder(config, "llama4_text", layers, norm)


def read_chunked_attention(config: Config, norm: Norm, *, has_qk_norm: bool) -> list[Attention]:
    """The attention of each layer, within chunks of whole blocks of the cache.

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
        for rotates, chunk in zip(has_rope, _chunks(config, has_rope), strict=True)
    ]


def _read_query_scale(config: Config) -> QueryScale | None:
    if not config.flag("attn_temperature_tuning", True):
        return None
    length = config.positive_number("floor_scale", 8192)
    return QueryScale(config.number("attn_scale", 0.1), length, offset=1)


def _chunks(config: Config, has_rope: list[bool]) -> list[int | None]:
    """The size of each layer's chunks; None for a layer that attends to all tokens."""
    chunk = config.integer("attention_chunk_size", 0) or None
    if chunk is not None and chunk % BLOCK_TOKENS:
        raise Unsupported(
            f"attention_chunk_size = {chunk} is not a multiple of {BLOCK_TOKENS}",
            where=config.where,
        )
    if not config.has("layer_types"):
        return [chunk if rotates else None for rotates in has_rope]
    types = layer_types(config, FULL, _CHUNKED)
    return [chunk if kind == _CHUNKED else None for kind in types]


FAMILY = Family(
    "llama4_text",
    read,
    gguf_arch="llama4",
    aliases=("llama4",),
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16_384,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "attention_chunk_size": 8192,
    },
    safetensors={
        **mlp_names("ffn", "feed_forward"),
        **mlp_names("ffn.shared", "feed_forward.shared_expert"),
        "ffn.router": "feed_forward.router",
        "ffn.experts.{expert}.gate_up.weight": "feed_forward.experts.gate_up_proj^T",
        "ffn.experts.{expert}.down.weight": "feed_forward.experts.down_proj^T",
    },
    gguf_keys={
        "intermediate_size": "expert_feed_forward_length",
        "intermediate_size_mlp": "feed_forward_length",
        "interleave_moe_layer_step": "interleave_moe_layer_step",
    },
    gguf_defaults={"attention_chunk_size": 8192},
)

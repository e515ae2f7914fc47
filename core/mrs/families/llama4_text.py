"""Llama 4, text: attention within chunks, and layers without rope that attend to all tokens."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import QueryScale
from mrs.architecture.readers.layer_reader import (
    decoder,
    layer_count,
    layer_types,
    read_attention,
    read_heads,
    read_mlp,
    read_norm,
)
from mrs.architecture.readers.moe_reader import expert_count, read_expert, read_router
from mrs.architecture.readers.rope_reader import read_rope
from mrs.errors import NotReadable, Unsupported
from mrs.sizes.blocks import BLOCK_TOKENS

EXPERTS_OF_MAVERICK = 128


def read(config: Config) -> ModelSpec:
    norm, has_rope = read_norm(config, default=1e-5), _rope_layers(config)
    dense = read_expert(config, "intermediate_size_mlp")
    expert = read_mlp(config)
    moe = Moe(read_router(config, scoring="sigmoid"), expert, shared=expert, weighs_input=True)
    sparse = _sparse_layers(config)
    layers = [
        Layer(_read_attention(config, rotates, chunk), moe if index in sparse else dense, norm)
        for index, (rotates, chunk) in enumerate(zip(has_rope, _chunks(config), strict=True))
    ]
    return decoder(config, "llama4_text", layers, norm)


def _read_attention(config: Config, rotates: bool, chunk: int | None) -> Attention:
    bias, scale = config.flag("attention_bias", False), None
    if not rotates and config.flag("attn_temperature_tuning", True):
        length = config.positive_number("floor_scale", 8192)
        scale = QueryScale(config.number("attn_scale", 0.1), length, offset=1)
    # GGUF files do not say that Maverick has no norm.
    is_maverick = expert_count(config) == EXPERTS_OF_MAVERICK
    has_norm = rotates and config.flag("use_qk_norm", not is_maverick)
    rope = read_rope(config, read_heads(config)[2], default_base=5e5, interleaved=True)
    return read_attention(
        config,
        rope=rope if rotates else None,
        chunk=chunk,
        qk_norm=read_norm(config, default=1e-5) if has_norm else None,
        qk_norm_after_rope=has_norm,
        qk_norm_learned=not has_norm,
        query_scale=scale,
        qkv_bias=bias,
        out_bias=bias,
    )


def _rope_layers(config: Config) -> Sequence[bool]:
    """Whether each layer has rope; the config's list of layers without it has 1 for those with."""
    count = layer_count(config)
    listed = config.sequence("no_rope_layers", ())
    if listed and len(listed) != count:
        raise NotReadable(f"no_rope_layers must have {count} entries", where=config.where)
    interval = config.positive("no_rope_layer_interval", 4)
    return [bool(each) for each in listed] or [(n + 1) % interval != 0 for n in range(count)]


def _chunks(config: Config) -> Sequence[int | None]:
    """The size of each layer's chunks; None for a layer that attends to all tokens."""
    chunk = config.integer("attention_chunk_size", 0) or None
    if chunk is not None and chunk % BLOCK_TOKENS:
        raise Unsupported(
            f"attention_chunk_size = {chunk} is not a multiple of {BLOCK_TOKENS}",
            where=config.where,
        )
    if not config.has("layer_types"):
        return [chunk if rotates else None for rotates in _rope_layers(config)]
    types = layer_types(config, "full_attention", "chunked_attention")
    return [chunk if kind == "chunked_attention" else None for kind in types]


def _sparse_layers(config: Config) -> Sequence[int]:
    """The indices of the layers with experts."""
    step = config.positive("interleave_moe_layer_step", 1)
    return config.sequence("moe_layers", range(step - 1, layer_count(config), step))


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
        "ffn.gate": "feed_forward.gate_proj",
        "ffn.up": "feed_forward.up_proj",
        "ffn.down": "feed_forward.down_proj",
        "ffn.router": "feed_forward.router",
        "ffn.experts.{expert}.gate_up.weight": "feed_forward.experts.gate_up_proj^T",
        "ffn.experts.{expert}.down.weight": "feed_forward.experts.down_proj^T",
        "ffn.shared.gate": "feed_forward.shared_expert.gate_proj",
        "ffn.shared.up": "feed_forward.shared_expert.up_proj",
        "ffn.shared.down": "feed_forward.shared_expert.down_proj",
    },
    gguf_keys={
        "intermediate_size": "expert_feed_forward_length",
        "intermediate_size_mlp": "feed_forward_length",
        "interleave_moe_layer_step": "interleave_moe_layer_step",
    },
    gguf_defaults={"attention_chunk_size": 8192},
)

"""Llama 4, text: attention within chunks, and layers without rope that attend to all tokens."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.names.mlp_names import mlp_names
from mrs.architecture.readers.chunked_attention_reader import read_chunked_attention
from mrs.architecture.readers.layer_reader import decoder, read_mlp, read_norm, stack_layers
from mrs.architecture.readers.moe_reader import expert_count, mixed_layers, read_router
from mrs.sizes.blocks import BLOCK_TOKENS

EXPERTS_OF_MAVERICK = 128


def read(config: Config) -> ModelSpec:
    # MobileLLM says 0: neither chunks nor layers without rope.
    config.allow_only("sliding_window", 8192)
    norm, expert = read_norm(config, default=1e-5), read_mlp(config)
    moe = Moe(read_router(config, scoring="sigmoid"), expert, shared=expert, weighs_input=True)
    feed_forward = mixed_layers(config, moe, read_mlp(config, "intermediate_size_mlp"))
    # GGUF files do not say that Maverick has no norm.
    has_norm = expert_count(config) != EXPERTS_OF_MAVERICK
    mixers = read_chunked_attention(config, norm, has_qk_norm=has_norm, block_tokens=BLOCK_TOKENS)
    layers = stack_layers(mixers, feed_forward, norm)
    return decoder(config, "llama4_text", layers, norm)


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

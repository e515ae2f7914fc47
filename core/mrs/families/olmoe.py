"""OLMoE: a norm over all query and key heads at once, and experts in every layer."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import biased_attention
from mrs.layers.layer import Layer
from mrs.layers.moe.config import read_expert, read_router
from mrs.layers.moe.spec import Moe
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm, clip = read_norm(config, default=1e-5), config.optional_number("clip_qkv")
    attention = biased_attention(config, qk_norm=norm, qk_norm_whole=True, clip=clip)
    router = read_router(config, norm_topk_prob=config.flag("norm_topk_prob", False))
    layer = Layer(attention, Moe(router, read_expert(config, "intermediate_size")), norm)
    return decoder(config, "olmoe", [layer] * layer_count(config), norm)


FAMILY = Family(
    "olmoe",
    read,
    gguf_arch="olmoe",
    defaults={
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "num_experts": 64,
        "num_experts_per_tok": 8,
    },
)

"""FlexOlmo: OLMo 2 with a mixture of experts in every layer."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.families.olmo2 import POST_NORM_NAMES
from mrs.layers.attention.config import biased_attention
from mrs.layers.layer import Layer
from mrs.layers.moe.config import read_expert, read_router
from mrs.layers.moe.spec import Moe
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    attention = biased_attention(config, qk_norm=norm, qk_norm_whole=True)
    router = read_router(config, norm_topk_prob=config.flag("norm_topk_prob", False))
    moe = Moe(router, read_expert(config, "intermediate_size"))
    layer = Layer(attention, moe, norm, style="post")
    return decoder(config, "flex_olmo", [layer] * layer_count(config), norm)


FAMILY = Family(
    "flex_olmo",
    read,
    defaults={
        "rope_theta": 5e5,
        "max_position_embeddings": 4096,
        "num_experts": 7,
        "num_experts_per_tok": 5,
    },
    safetensors=POST_NORM_NAMES,
)

"""LFM 2 MoE: LFM 2 with a mixture of experts after the first layers."""

from __future__ import annotations

from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.families.lfm2 import GGUF_NAMES, NAMES, read_lfm2
from mrs.layers.mlp.spec import Mlp, numbered_mlp_names
from mrs.layers.moe.config import mixed_layers, read_expert, read_sigmoid_router
from mrs.layers.moe.spec import Moe
from mrs.layers.short_convolution.config import CONVOLUTION_GGUF_KEYS


def read(config: Config) -> ModelSpec:
    has_bias = config.flag("use_expert_bias", True)
    router = read_sigmoid_router(config, score_correction_bias=has_bias)
    moe, mlp = Moe(router, read_expert(config)), Mlp(config.positive("intermediate_size"))
    return read_lfm2(config, "lfm2_moe", mixed_layers(config, moe, mlp, first=2))


FAMILY = Family(
    "lfm2_moe",
    read,
    gguf_arch="lfm2moe",
    defaults={
        "num_key_value_heads": 8,
        "rope_theta": 1e6,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1792,
    },
    safetensors={
        **NAMES,
        "ffn.router": "feed_forward.gate",
        "ffn.router.correction": "feed_forward.expert_bias",
        **numbered_mlp_names("ffn.experts.{expert}", "feed_forward.experts.{expert}"),
    },
    gguf=GGUF_NAMES,
    gguf_keys={**CONVOLUTION_GGUF_KEYS, "num_dense_layers": "leading_dense_block_count"},
)

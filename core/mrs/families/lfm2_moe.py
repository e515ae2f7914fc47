"""LFM 2 MoE: LFM 2 with a mixture of experts after the first layers."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_reader import decoder
from mrs.architecture.readers.moe_reader import read_expert, read_router
from mrs.families.lfm2 import GGUF_KEYS, GGUF_NAMES, NAMES, read_mixers


def read(config: Config) -> ModelSpec:
    mixers, norm = read_mixers(config)
    router = read_router(
        config,
        scoring="sigmoid",
        score_correction_bias=config.flag("use_expert_bias", True),
        norm_topk_prob=config.flag("norm_topk_prob", True),
        scale=config.number("routed_scaling_factor", 1.0),
    )
    moe = Moe(router, read_expert(config))
    mlp = Mlp(config.positive("intermediate_size"))
    first = config.integer("num_dense_layers", 2)
    layers = [
        Layer(mixer, mlp if layer < first else moe, norm) for layer, mixer in enumerate(mixers)
    ]
    tied = config.flag("tie_embedding", config.flag("tie_word_embeddings", True))
    return decoder(config, "lfm2_moe", layers, norm, tied_head=tied)


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
        "ffn.experts.{expert}.gate": "feed_forward.experts.{expert}.w1",
        "ffn.experts.{expert}.up": "feed_forward.experts.{expert}.w3",
        "ffn.experts.{expert}.down": "feed_forward.experts.{expert}.w2",
    },
    gguf=GGUF_NAMES,
    gguf_keys={**GGUF_KEYS, "num_dense_layers": "leading_dense_block_count"},
)

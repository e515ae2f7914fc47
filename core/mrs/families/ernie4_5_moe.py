"""ERNIE 4.5 MoE: ERNIE 4.5 with routed and shared experts after the first layers."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.decoder_config import decoder
from mrs.architecture.draft_head import HeadFiles
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.families.ernie4_5 import read_attention_and_bias
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.mlp.spec import SHARED_EXPERTS
from mrs.layers.moe.config import mixed_layers, read_expert, read_router, read_shared_expert
from mrs.layers.moe.spec import Moe
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm = read_norm(config, default=1e-5)
    attention, bias = read_attention_and_bias(config)
    feed_forward = mixed_layers(config, _read_moe(config, bias), read_mlp(config, bias=bias), 1)
    layers = [Layer(attention, ffn, norm) for ffn in feed_forward]
    return decoder(config, "ernie4_5_moe", layers, norm, head_bias=config.flag("use_bias", False))


def _read_moe(config: Config, bias: bool) -> Moe:
    router = read_router(config, score_correction_bias=True, norm_topk_prob=True)
    return Moe(router, read_expert(config), shared=read_shared_expert(config, bias=bias))


def _head_layer(target: ModelSpec, config: Config) -> Layer | None:
    """A layer with an MLP in place of experts."""
    if config.flag("use_bias", False):  # where published code does not agree
        return None
    return replace(target.layers[-1], feed_forward=read_mlp(config))


FAMILY = Family(
    "ernie4_5_moe",
    read,
    gguf_arch="ernie4_5-moe",
    defaults={
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "moe_num_experts": 64,
        "moe_k": 6,
        "moe_num_shared_experts": 2,
        "moe_intermediate_size": 1536,
    },
    safetensors={
        **SHARED_EXPERTS,
        "ffn.router.correction": "mlp.moe_statics.e_score_correction_bias",
    },
    gguf_keys={
        "moe_num_shared_experts": "expert_shared_count",
        "moe_layer_interval": "interleave_moe_layer_step",
        "moe_layer_start_index": "leading_dense_block_count",
    },
    head=HeadFiles(
        {
            "layer": "model.mtp_block.0.",
            "join": "model.mtp_linear_proj.0",
            "join.token_norm": "model.mtp_emb_norm.0",
            "join.state_norm": "model.mtp_hidden_norm.0",
        },
        layer=_head_layer,
    ),
    ignored=("model.mtp_",),
)

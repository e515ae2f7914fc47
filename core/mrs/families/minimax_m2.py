"""MiniMax M2: norms of all heads at once, rope on half of each, sigmoid routing."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import read_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import SPARSE_BLOCK
from mrs.layers.moe.config import read_expert, read_router
from mrs.layers.moe.spec import Moe
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm = read_norm(config)
    attention = read_attention(config, qk_norm=norm, qk_norm_whole=True)
    router = read_router(config, scoring="sigmoid", score_correction_bias=True, norm_topk_prob=True)
    layer = Layer(attention, Moe(router, read_expert(config, "intermediate_size")), norm)
    return decoder(config, "minimax_m2", [layer] * layer_count(config), norm)


FAMILY = Family(
    "minimax_m2",
    read,
    gguf_arch="minimax-m2",
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_theta": 5e6,
        "num_local_experts": 256,
        "num_experts_per_tok": 8,
    },
    safetensors={
        **SPARSE_BLOCK,
        "ffn.router.correction": "block_sparse_moe.e_score_correction_bias",
    },
)

"""HY 3 (Tencent): Qwen 3's attention, and experts by sigmoid scores after a dense layer."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.draft_head import NEXTN, HeadFiles
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.layers.attention.config import biased_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.mlp.spec import mlp_names
from mrs.layers.moe.config import mixed_layers, read_shared_expert, read_sigmoid_moe
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    config.allow_only("route_norm", True)
    norm, bias = read_norm(config, default=1e-5), config.flag("mlp_bias", False)
    size = config.spelling("shared_expert_intermediate_size", "moe_intermediate_size")
    shared = read_shared_expert(config, size, default=1, bias=bias)
    moe, mlp = read_sigmoid_moe(config, shared), read_mlp(config, bias=bias)
    attention = biased_attention(config, qk_norm=norm)
    layers = [Layer(attention, ffn, norm) for ffn in mixed_layers(config, moe, mlp, first=1)]
    return decoder(config, "hy_v3", layers, norm)


FAMILY = Family(
    "hy_v3",
    read,
    gguf_arch="hy_v3",
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rope_theta": 11_158_840.0,
        "num_experts": 192,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1536,
        "router_scaling_factor": 2.826,
    },
    safetensors={
        **mlp_names("ffn.shared", "mlp.shared_mlp"),
        "ffn.router": "mlp.router.gate",
        "ffn.router.correction": "mlp.expert_bias",
    },
    gguf={"ffn.router.correction": "exp_probs_b"},
    # The size of all shared experts together is in files, and not their number.
    gguf_keys={
        "first_k_dense_replace": "leading_dense_block_count",
        "router_scaling_factor": "expert_weights_scale",
        "route_norm": "expert_weights_norm",
    },
    head=HeadFiles({**NEXTN.safetensors, "norm": "{layer}final_layernorm"}, NEXTN.gguf),
    ignored=("model.layers.{layers}.",),
)

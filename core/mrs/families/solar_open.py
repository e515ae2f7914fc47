"""Solar Open: Llama's attention with DeepSeek V3's experts in every layer."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import read_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.spec import SHARED_EXPERTS
from mrs.layers.moe.config import read_grouped_moe
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    config.require_off("first_k_dense_replace", "use_qk_norm")
    norm = read_norm(config, default=1e-5)
    attention = read_attention(config, qkv_bias=config.flag("attention_bias", False))
    layer = Layer(attention, read_grouped_moe(config), norm)
    return decoder(config, "solar_open", [layer] * layer_count(config), norm)


FAMILY = Family(
    "solar_open",
    read,
    # Its GGUF files are those of `glm4_moe`.
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rope_theta": 1e6,
        "scoring_func": "sigmoid",
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "moe_intermediate_size": 1280,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
    },
    safetensors=SHARED_EXPERTS,
)

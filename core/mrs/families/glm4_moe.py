"""GLM 4.5 to 4.7: GLM 4 with plain pre-norms, and DeepSeek V3's experts."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.draft_head import NEXTN
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.layers.attention.config import read_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.mlp.spec import SHARED_EXPERTS
from mrs.layers.moe.config import GROUPED_MOE_GGUF_KEYS, mixed_layers, read_grouped_moe
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm = read_norm(config, default=1e-5)
    attention = read_attention(
        config,
        qk_norm=norm if config.flag("use_qk_norm", config.flag("has_qk_norm", False)) else None,
        qkv_bias=config.flag("attention_bias", False),
    )
    feed_forward = mixed_layers(config, read_grouped_moe(config), read_mlp(config))
    layers = [Layer(attention, ffn, norm) for ffn in feed_forward]
    return decoder(config, "glm4_moe", layers, norm)


FAMILY = Family(
    "glm4_moe",
    read,
    gguf_arch="glm4moe",
    defaults={
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 8,
        "partial_rotary_factor": 0.5,
        "scoring_func": "sigmoid",
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "moe_intermediate_size": 1408,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "first_k_dense_replace": 1,
    },
    safetensors=SHARED_EXPERTS,
    gguf={"ffn.norm": "post_attention_norm"},
    gguf_keys=GROUPED_MOE_GGUF_KEYS,
    head=NEXTN,
    ignored=("model.layers.{layers}.", "blk.{layers}."),
)

"""EXAONE MoE (K-EXAONE): EXAONE 4's attention with plain pre-norms, and DeepSeek V3's experts."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder, stack_layers
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.layers.attention.config import read_periodic_rope
from mrs.layers.mlp.config import read_mlp
from mrs.layers.mlp.spec import SHARED_EXPERTS
from mrs.layers.moe.config import GROUPED_MOE_GGUF_KEYS, mixed_layers, read_grouped_moe
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm = read_norm(config, default=1e-5)
    feed_forward = mixed_layers(config, read_grouped_moe(config), read_mlp(config))
    layers = stack_layers(read_periodic_rope(config, qk_norm=norm), feed_forward, norm)
    return decoder(config, "exaone_moe", layers, norm)


FAMILY = Family(
    "exaone_moe",
    read,
    gguf_arch="exaone-moe",
    defaults={
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "scoring_func": "sigmoid",
        "num_experts": 64,
        "num_shared_experts": 1,
        "moe_intermediate_size": 1024,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 1,
    },
    safetensors={**SHARED_EXPERTS, "ffn.router.correction": "mlp.e_score_correction_bias"},
    gguf_keys=GROUPED_MOE_GGUF_KEYS,
    # The layer that predicts the token after the next.
    ignored=("mtp.",),
)

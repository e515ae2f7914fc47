"""EXAONE MoE (K-EXAONE): EXAONE 4's attention with plain pre-norms, and DeepSeek V3's experts."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.decoder_config import decoder, stack_layers
from mrs.architecture.draft_head import MTP, layer_of_target
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import FULL
from mrs.layers.attention.config import read_periodic_rope
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.mlp.spec import SHARED_EXPERTS
from mrs.layers.moe.config import GROUPED_MOE_GGUF_KEYS, mixed_layers, read_grouped_moe
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm = read_norm(config, default=1e-5)
    feed_forward = mixed_layers(config, read_grouped_moe(config), read_mlp(config))
    layers = stack_layers(read_periodic_rope(config, qk_norm=norm), feed_forward, norm)
    return decoder(config, "exaone_moe", layers, norm)


def _head_layer(target: ModelSpec, config: Config) -> Layer | None:
    """A layer with an MLP in place of experts; one with a window is not known to be published."""
    layer = layer_of_target(target, config)
    if layer is None or [*config.sequence("mtp_layer_types", ())] != [FULL]:
        return None
    return replace(layer, feed_forward=read_mlp(config))


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
    # Files do not say what K-EXAONE's config does.
    gguf_defaults={"mtp_layer_types": [FULL]},
    head=replace(MTP, layer=_head_layer),
    ignored=("mtp.",),
)

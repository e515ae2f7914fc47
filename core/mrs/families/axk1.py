"""A.X K1: DeepSeek V3 with a further norm on what experts add."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.families.deepseek_v2 import read_deepseek
from mrs.families.deepseek_v3 import FAMILY as DEEPSEEK
from mrs.layers.mlp.spec import SHARED_EXPERTS
from mrs.layers.moe.spec import Moe


def read(config: Config) -> ModelSpec:
    # The published files choose experts by their scores alone.
    corrects = config.flag("has_score_correction", True)
    spec = read_deepseek(config, "axk1", score_correction_bias=corrects)
    layers = (
        replace(layer, style="half_sandwich") if isinstance(layer.feed_forward, Moe) else layer
        for layer in spec.layers
    )
    return replace(spec, layers=tuple(layers))


FAMILY = Family(
    "axk1",
    read,
    defaults={
        **DEEPSEEK.defaults,
        "n_routed_experts": 192,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 32_768,
    },
    safetensors={**SHARED_EXPERTS, "ffn.post_norm": "post_mlp_layernorm"},
    ignored=("model.layers.{layers}.",),
    # The first layer has one, too, and an MLP, which does not use it.
    unread=("model.layers.0.post_mlp_layernorm.",),
)

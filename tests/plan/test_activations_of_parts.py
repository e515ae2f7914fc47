"""Predicted activations bound what mixtures, latent attention and states are seen to allocate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_models import write_model
from test_activations import BASE, measured_and_predicted

_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
_NEXT: dict[str, Any] = {
    **_EXPERTS,
    "model_type": "qwen3_next",
    "head_dim": 32,
    "shared_expert_intermediate_size": 128,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
MODELS: dict[str, dict[str, Any]] = {
    "mixture": {"model_type": "mixtral", "num_local_experts": 4},
    "shared expert": {
        **_EXPERTS,
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": 512,
    },
    "latent attention": {
        "model_type": "deepseek_v2",
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 256,
        "kv_lora_rank": 128,
        "q_lora_rank": 128,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
    },
    "convolution": {
        "model_type": "lfm2",
        "layer_types": ["conv", "conv"],
        "intermediate_size": 64,
        "block_auto_adjust_ff_dim": False,
    },
    "delta net": {**_NEXT, "layer_types": ["linear_attention", "linear_attention"]},
    "gated attention": {**_NEXT, "layer_types": ["full_attention", "full_attention"]},
}


@pytest.mark.parametrize("model", MODELS)
def test_the_measured_peak_is_bounded(tmp_path: Path, model: str) -> None:
    folder = write_model(tmp_path, {**BASE, **MODELS[model]})
    measured, bound = measured_and_predicted(folder, "f32")
    assert measured <= bound <= 1.25 * measured

"""Read experts that are chosen by groups and the bias of each, with shared experts."""

from __future__ import annotations

from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.mixers.moe_spec import Moe, Router
from mrs.architecture.readers.moe_reader import read_expert, read_router, read_shared_expert

#: Config key -> metadata key of GGUF files.
GROUPED_MOE_GGUF_KEYS = {
    "first_k_dense_replace": "leading_dense_block_count",
    "n_shared_experts": "expert_shared_count",
    "routed_scaling_factor": "expert_weights_scale",
    "norm_topk_prob": "expert_weights_norm",
    "scoring_func": "expert_gating_func",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
}
#: GGUF's ids of the two scoring functions.
_SCORING = {1: "softmax", 2: "sigmoid"}


def read_scoring(config: Config) -> str:
    """Whether scores are a `softmax` or `sigmoid`."""
    config.allow_only("scoring_func", *_SCORING, *_SCORING.values())
    # Some GGUF files leave it to the reader.
    usual = "sigmoid" if config.flag("has_score_correction", False) else "softmax"
    scoring = config.values.get("scoring_func") or usual
    return _SCORING[scoring] if isinstance(scoring, int) else str(scoring)


def read_grouped_router(config: Config, **changes: Any) -> Router:
    """The router; `changes` override its fields."""
    config.allow_only("topk_method", "greedy", "group_limited_greedy", "noaux_tc")
    scoring = read_scoring(config)
    is_sigmoid = scoring == "sigmoid"
    fields: dict[str, Any] = {
        "scoring": scoring,
        "score_correction_bias": is_sigmoid,
        "norm_topk_prob": config.flag("norm_topk_prob", False),
        "scale": config.number("routed_scaling_factor", 1.0),
        "group_score_experts": 2 if is_sigmoid else 1,
    }
    if config.values.get("topk_method") != "greedy":
        n_group = config.positive("n_group", 1)
        fields |= {"n_group": n_group, "topk_group": config.positive("topk_group", n_group)}
    return read_router(config, **{**fields, **changes})


def read_grouped_moe(config: Config, **changes: Any) -> Moe:
    """Routed experts and shared ones; `changes` override fields of the router."""
    config.allow_only("moe_layer_freq", 1)
    shared = read_shared_expert(config, bias=config.flag("mlp_bias", False))
    return Moe(read_grouped_router(config, **changes), read_expert(config), shared=shared)

"""Read experts whose output may be averaged with that of shared ones."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.readers.moe_reader import read_expert, read_router, read_shared_expert


def read_averaged_moe(config: Config) -> Moe:
    """Routed experts, and a shared one that is averaged with or added to them."""
    config.allow_only("expert_selection_fn", "softmax", "sigmoid")
    config.allow_only("shared_expert_combination_strategy", "average", "sum")
    is_sigmoid = config.values.get("expert_selection_fn") == "sigmoid"
    is_sum = config.values.get("shared_expert_combination_strategy") == "sum"
    shared = read_shared_expert(config, "intermediate_size", out_scale=1.0 if is_sum else 0.5)
    router = read_router(
        config,
        scoring="sigmoid" if is_sigmoid else "softmax",
        norm_topk_prob=not is_sigmoid or config.flag("norm_topk_prob", True),
        scale=1.0 if shared is None else shared.out_scale,
    )
    return Moe(router, read_expert(config, "intermediate_size"), shared=shared)

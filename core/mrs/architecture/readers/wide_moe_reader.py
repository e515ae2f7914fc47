"""Read experts beside a shared one of another size, which is the MLP of a model without experts."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.readers.moe_reader import expert_count, read_expert, read_router


def read_wide_moe(config: Config) -> Mlp | Moe:
    shared = read_expert(config, config.spelling("shared_intermediate_size", "intermediate_size"))
    if not expert_count(config):
        return shared
    expert = read_expert(config, "intermediate_size")
    return Moe(read_router(config, norm_topk_prob=True), expert, shared=shared)

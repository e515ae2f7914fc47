"""Read experts, beside which a shared one may have another size.

In a model without experts it is the MLP.
"""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.readers.moe_reader import expert_count, read_expert, read_router


def read_wide_moe(config: Config) -> Mlp | Moe:
    key, size = "shared_intermediate_size", "intermediate_size"
    if not expert_count(config):
        return read_expert(config, config.spelling(key, size))
    expert = read_expert(config, size)
    shared = read_expert(config, key) if config.integer(key, 0) else None
    return Moe(read_router(config, norm_topk_prob=True), expert, shared=shared)

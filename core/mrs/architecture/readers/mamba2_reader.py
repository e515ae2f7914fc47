"""Read a Mamba 2 mixer from its config keys, in each of their spellings."""

from __future__ import annotations

import math
from typing import Any

from mrs.architecture.config import Config
from mrs.architecture.mixers.mamba2_spec import Mamba2
from mrs.errors import NotReadable


def read_mamba2(config: Config, **changes: Any) -> Mamba2:
    """The state space; `changes` override its fields. GGUF files have the size of all heads."""
    heads = config.positive(_spelling(config, "mamba_n_heads", "mamba_num_heads"))
    groups = config.positive(_spelling(config, "mamba_n_groups", "n_groups"), 1)
    key = _spelling(config, "mamba_d_head", "mamba_head_dim")
    total = config.integer("mamba_inner_size", 0)
    total = total or config.integer("mamba_expand", 2) * config.positive("hidden_size")
    # Some configs say "auto".
    head_dim = config.positive(key) if isinstance(config.values.get(key), int) else total // heads
    if heads % groups or not head_dim:
        raise NotReadable(
            f"{heads} Mamba heads do not form {groups} groups, or have no values",
            where=config.where,
        )
    least, most = _step_limits(config)
    fields: dict[str, Any] = {
        "least_step": least,
        "most_step": most,
        "convolution_bias": config.flag(
            _spelling(config, "mamba_conv_bias", "use_conv_bias"), True
        ),
        **changes,
    }
    state_dim = config.positive(_spelling(config, "mamba_d_state", "ssm_state_size"))
    kernel = config.positive(_spelling(config, "mamba_d_conv", "conv_kernel"), 4)
    return Mamba2(heads, head_dim, state_dim, groups, kernel, **fields)


def _spelling(config: Config, *keys: str) -> str:
    """The first of `keys` that the config has."""
    return next((key for key in keys if config.has(key)), keys[0])


def _step_limits(config: Config) -> tuple[float, float]:
    """The least and the most step; the most is usually infinite, which JSON files spell apart."""
    limits = [
        math.inf if limit == {"__float__": "Infinity"} else limit
        for limit in config.sequence("time_step_limit", (0.0, math.inf))
    ]
    if len(limits) != 2 or not all(isinstance(limit, (int, float)) for limit in limits):
        raise NotReadable(f"time_step_limit = {limits!r} must be two numbers", where=config.where)
    return float(limits[0]), float(limits[1])

"""Read a Mamba 2 mixer from its config keys, in each of their spellings."""

from __future__ import annotations

import math
from typing import Any

from mrs.config.config import Config
from mrs.config.layer_kinds import ATTENTION, LINEAR, attention_layers, listed_layers
from mrs.errors import NotReadable
from mrs.layers.attention.spec import Attention
from mrs.layers.mamba2.spec import Mamba2
from mrs.layers.mixer import Mixer
from mrs.layers.norm.spec import Norm

#: Config key -> metadata key of GGUF files, which have the size of all heads.
MAMBA2_GGUF_KEYS = {
    "mamba_n_heads": "ssm.time_step_rank",
    "mamba_n_groups": "ssm.group_count",
    "mamba_d_ssm": "ssm.inner_size",
    "mamba_d_state": "ssm.state_size",
    "mamba_d_conv": "ssm.conv_kernel",
}


def read_mamba2(config: Config, **changes: Any) -> Mamba2:
    """The state space; `changes` override its fields."""
    heads = config.positive(config.spelling("mamba_num_heads", "mamba_n_heads"))
    groups = config.positive(config.spelling("n_groups", "mamba_n_groups"), 1)
    key = config.spelling("mamba_head_dim", "mamba_d_head")
    if config.has("mamba_d_ssm"):
        total = config.positive("mamba_d_ssm")
    else:
        total = config.integer("mamba_expand", 2) * config.positive("hidden_size")
    # Some configs say "auto".
    head_dim = config.positive(key) if isinstance(config.values.get(key), int) else total // heads
    if heads % groups or not head_dim:
        raise NotReadable(
            f"{heads} Mamba heads do not form {groups} groups, or have no values",
            where=config.where,
        )
    least, most = _step_limits(config)
    bias = config.flag(config.spelling("use_bias", "mamba_proj_bias"), False)
    fields: dict[str, Any] = {
        "least_step": least,
        "most_step": most,
        "convolution_bias": config.flag(config.spelling("use_conv_bias", "mamba_conv_bias"), True),
        "bias": bias,
        "out_bias": bias,
        **changes,
    }
    state_dim = config.positive(config.spelling("ssm_state_size", "mamba_d_state"))
    kernel = config.positive(config.spelling("conv_kernel", "mamba_d_conv"), 4)
    return Mamba2(heads, head_dim, state_dim, groups, kernel, **fields)


def read_mamba2_mixers(config: Config, attention: Attention, norm: Norm) -> list[Mixer]:
    """The mixer of each layer: `attention` in those that are listed, Mamba 2 in others."""
    has_attention = attention_layers(config, *ATTENTION, "mamba", LINEAR)
    if has_attention is None:
        has_attention = listed_layers(config, "attn_layer_indices")
    if all(has_attention):  # then the config may have no sizes of a state
        return [attention] * len(has_attention)
    mamba2 = read_mamba2(config, norm=norm)
    return [attention if each else mamba2 for each in has_attention]


def _step_limits(config: Config) -> tuple[float, float]:
    """The least and the most step; the most is usually infinite, which JSON files spell apart."""
    limits = [
        math.inf if limit == {"__float__": "Infinity"} else limit
        for limit in config.sequence("time_step_limit", (0.0, math.inf))
    ]
    if len(limits) != 2 or not all(isinstance(limit, (int, float)) for limit in limits):
        raise NotReadable(f"time_step_limit = {limits!r} must be two numbers", where=config.where)
    return float(limits[0]), float(limits[1])

"""Read the first Mamba's mixer from its config keys."""

from __future__ import annotations

from typing import Any

from mrs.config.config import Config
from mrs.layers.mamba.spec import Mamba

#: Config key -> metadata key of GGUF files.
MAMBA_GGUF_KEYS = {
    "mamba_d_inner": "ssm.inner_size",
    "mamba_d_state": "ssm.state_size",
    "mamba_d_conv": "ssm.conv_kernel",
    "mamba_dt_rank": "ssm.time_step_rank",
}


def read_mamba(config: Config, **changes: Any) -> Mamba:
    """The state space; `changes` override its fields."""
    config.allow_only("hidden_act", "silu", "swish")
    hidden = config.positive("hidden_size")
    if config.has("mamba_d_inner"):
        channels = config.positive("mamba_d_inner")
    else:
        channels = config.positive("mamba_expand", 2) * hidden
    rank = config.values.get("mamba_dt_rank", "auto")
    fields: dict[str, Any] = {
        "bias": config.flag("mamba_proj_bias", False),
        "convolution_bias": config.flag("mamba_conv_bias", True),
        **changes,
    }
    return Mamba(
        channels,
        config.positive("mamba_d_state", 16),
        -(-hidden // 16) if rank in (None, "auto") else config.positive("mamba_dt_rank"),
        config.positive("mamba_d_conv", 4),
        **fields,
    )

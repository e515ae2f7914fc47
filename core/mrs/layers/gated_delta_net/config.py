"""Read gated delta nets, and the gated attention that some layers have in their place."""

from __future__ import annotations

from typing import Any

from mrs.config.config import Config
from mrs.errors import NotReadable
from mrs.layers.gated_delta_net.spec import GatedDeltaNet
from mrs.layers.norm.config import read_norm

DELTA_NET_DEFAULTS = {
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
#: Config key -> metadata key of GGUF files, which have the size of all value heads together.
DELTA_NET_GGUF_KEYS = {
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "linear_key_head_dim": "ssm.state_size",
    "linear_inner_size": "ssm.inner_size",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "full_attention_interval": "full_attention_interval",
    "recurrent_layers": "attention.recurrent_layers",
}


def read_delta_net(config: Config, *, tiled: bool = False, **changes: Any) -> GatedDeltaNet:
    """The delta net; `changes` override its fields."""
    config.allow_only("hidden_act", "silu", "swish")
    key_heads = config.positive("linear_num_key_heads")
    value_heads = config.positive("linear_num_value_heads")
    if value_heads % key_heads:
        raise NotReadable(
            f"linear_num_value_heads = {value_heads} is not a multiple of "
            f"linear_num_key_heads = {key_heads}",
            where=config.where,
        )
    value_dim = config.integer("linear_inner_size", 0) // value_heads
    return GatedDeltaNet(
        key_heads,
        value_heads,
        config.positive("linear_key_head_dim"),
        config.positive("linear_value_head_dim", value_dim),
        config.positive("linear_conv_kernel_dim", 4),
        **{"norm": read_norm(config), **changes},
        tiled=tiled and config.has("linear_inner_size"),
    )

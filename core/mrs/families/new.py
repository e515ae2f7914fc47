"""GTE as Alibaba publishes it, whose files call it `new`: with its own rule of longer contexts."""

from __future__ import annotations

from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.families.gte import gte_family
from mrs.families.gte import read as read_gte
from mrs.layers.attention.config import read_heads


def read(config: Config) -> ModelSpec:
    config.allow_only("position_embedding_type", "rope")
    config.allow_only("layer_norm_type", "layer_norm")
    config.allow_only("pack_qkv", True)
    config.require_off("logn_attention_scale")
    scaling = config.inner("rope_scaling")
    scaling.allow_only("mixed_b")
    if scaling.values.get("type") != "ntk":
        return read_gte(config)
    # Frequency i is that of a base `factor` times as large, over factor ** (2 / head size).
    factor = scaling.positive_number("factor")
    base = config.positive_number("rope_theta", 10_000.0) * factor
    linear = {"rope_type": "linear", "factor": factor ** (2 / read_heads(config)[2])}
    return read_gte(config.changed({"rope_theta": base, "rope_scaling": linear}))


FAMILY = gte_family("new", read)

"""Read what GGUF files of Gemma 4 spell in another way than its config."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.readers.moe_reader import expert_count
from mrs.architecture.readers.shared_layers_reader import GGUF_KEYS

#: The key that shows that a config comes from a GGUF file.
_SIGN = "rope_local_base_freq"

GEMMA4_GGUF_KEYS = {
    **GGUF_KEYS,
    "head_dim": "attention.key_length_swa",
    "global_head_dim": "attention.key_length",
}


def gemma4_config(config: Config) -> Config:
    """The config under the keys of Gemma 4, if it comes from a GGUF file."""
    if not config.has(_SIGN):
        return config
    # Both kinds of layers rotate whole heads, in part by factors that are almost 0.
    values = {key: value for key, value in config.values.items() if key != "rotary_dim"}
    values |= {
        "enable_moe_block": expert_count(config) > 0,
        "rope_parameters": {
            "sliding_attention": {"rope_theta": config.number(_SIGN)},
            "full_attention": {
                "rope_type": "factors",
                "rope_theta": config.positive_number("rope_theta"),
            },
        },
    }
    sizes = config.sequence("intermediate_size_by_layer", ())
    if sizes and min(sizes) < max(sizes):
        values |= {"intermediate_size": min(sizes), "use_double_wide_mlp": True}
    heads = config.sequence("num_key_value_heads_by_layer", ())
    for count, kind in zip(heads, config.sequence("layer_types", ()), strict=False):
        values[_HEAD_KEYS[kind]] = count
    return Config(values, config.where)


_HEAD_KEYS = {
    "sliding_attention": "num_key_value_heads",
    "full_attention": "num_global_key_value_heads",
}

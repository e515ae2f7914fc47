"""Command R and Aya: attention and MLP in parallel, and in Command R+ a QK norm of each head."""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.readers.layer_reader import (
    biased_attention,
    decoder,
    read_head_rope,
    read_layer_norm,
    read_mlp,
)


def read(config: Config) -> ModelSpec:
    norm = read_layer_norm(config, bias=False)
    has_qk_norm = config.flag("use_qk_norm", config.flag("has_qk_norm", False))
    attention = biased_attention(
        config,
        rope=read_head_rope(config, default_base=5e5, interleaved=True),
        qk_norm=norm if has_qk_norm else None,
        qk_norm_by_head=has_qk_norm,
    )
    layers = [Layer(attention, read_mlp(config), norm, style="parallel")] * layer_count(config)
    scale = config.number("logit_scale", 0.0625)
    return decoder(config, "cohere", layers, norm, logit_scale=scale)


FAMILY = Family(
    "cohere",
    read,
    gguf_arch="command-r",
    defaults={"tie_word_embeddings": True, "max_position_embeddings": 8192},
    gguf_keys={"logit_scale": "logit_scale"},
)

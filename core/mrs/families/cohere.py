"""Command R and Aya: attention and MLP in parallel, and in Command R+ a QK norm of each head."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import biased_attention, read_head_rope
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_layer_norm


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

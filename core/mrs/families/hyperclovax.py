"""HyperCLOVA X: Granite with a further norm on what is added, and a factor of logits."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.families.granite import read_scaled_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm, mlp = read_norm(config), read_mlp(config, bias=config.flag("mlp_bias", False))
    layer = Layer(
        read_scaled_attention(config),
        mlp,
        norm,
        style="sandwich" if config.flag("use_post_norm", True) else "pre",
        residual_scale=config.number("residual_multiplier", 1.0),
    )
    return decoder(
        config,
        "hyperclovax",
        [layer] * layer_count(config),
        norm,
        embedding_scale=config.number("embedding_multiplier", 1.0),
        logit_scale=config.number("logits_scaling", 1.0),
    )


FAMILY = Family(
    "hyperclovax",
    read,
    safetensors={
        "mixer.post_norm": "post_norm1",
        "ffn.norm": "post_attention_layernorm",
        "ffn.post_norm": "post_norm2",
    },
)

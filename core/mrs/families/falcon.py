"""Falcon: attention and MLP in parallel, in 40B with a norm each, and few or one key head.

Falcon-RW has ALiBi, and one after the other.
"""

from __future__ import annotations

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.names.falcon_names import FALCON, GGUF_FALCON
from mrs.architecture.readers.falcon_reader import (
    FALCON_DEFAULTS,
    falcon_style,
    read_falcon_attention,
    usual_config,
)
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.readers.layer_reader import decoder, read_layer_norm, read_mlp


def read(config: Config) -> ModelSpec:
    config = usual_config(config)
    norm = read_layer_norm(config)
    attention = read_falcon_attention(config)
    activation = config.activation("gelu", "activation")
    mlp = read_mlp(config, activation=activation, gated=False, bias=attention.out_bias)
    layer = Layer(attention, mlp, norm, style=falcon_style(config))
    return decoder(config, "falcon", [layer] * layer_count(config), norm)


FAMILY = Family(
    "falcon",
    read,
    gguf_arch="falcon",
    defaults=FALCON_DEFAULTS,
    safetensors=FALCON,
    gguf=GGUF_FALCON,
)

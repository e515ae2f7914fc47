"""nanochat: norms without weights, also before the first layer, and rope that turns backwards."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.config import Config
from mrs.architecture.family import Family
from mrs.architecture.first_input import FirstInput
from mrs.architecture.layers import Layer
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.readers.layer_kinds_reader import layer_count
from mrs.architecture.readers.layer_reader import (
    biased_attention,
    decoder,
    read_head_rope,
    read_mlp,
    read_norm,
)


def read(config: Config) -> ModelSpec:
    norm = replace(read_norm(config), learned=False)
    attention = biased_attention(
        config,
        rope=replace(read_head_rope(config), backwards=True),
        qk_norm=norm,
        qk_norm_after_rope=True,
    )
    mlp = read_mlp(config, activation=config.activation("relu2"), gated=False)
    return decoder(
        config,
        "nanochat",
        [Layer(attention, mlp, norm)] * layer_count(config),
        norm,
        input=FirstInput(norm),
        logit_softcap=config.optional_number("final_logit_softcapping"),
    )


FAMILY = Family(
    "nanochat",
    read,
    defaults={"num_attention_heads": 6, "final_logit_softcapping": 15.0},
    safetensors={"ffn.up": "mlp.fc1", "ffn.down": "mlp.fc2"},
)

"""nanochat: norms without weights, also before the first layer, and rope that turns backwards."""

from __future__ import annotations

from dataclasses import replace

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import biased_attention, read_head_rope
from mrs.layers.first_input.spec import FirstInput
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm


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

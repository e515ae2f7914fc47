"""OLMo 2: norms only on what layers add, and on all query and key heads at once."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import biased_attention
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm = read_norm(config, default=1e-5)
    attention = biased_attention(config, qk_norm=norm, qk_norm_whole=True)
    layer = Layer(attention, read_mlp(config), norm, style="post")
    return decoder(config, "olmo2", [layer] * layer_count(config), norm)


POST_NORM_NAMES = {"ffn.post_norm": "post_feedforward_layernorm"}

FAMILY = Family("olmo2", read, defaults={"rms_norm_eps": 1e-5}, safetensors=POST_NORM_NAMES)

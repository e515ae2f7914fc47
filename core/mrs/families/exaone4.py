"""EXAONE 4 and 4.5: norms only on what layers add, and no rope in the layers without a window."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.layers.attention.config import read_periodic_rope
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm, mlp = read_norm(config, default=1e-5), read_mlp(config)
    mixers = read_periodic_rope(config, qk_norm=norm)
    layers = [Layer(mixer, mlp, norm, style="post") for mixer in mixers]
    return decoder(config, "exaone4", layers, norm)


FAMILY = Family(
    "exaone4",
    read,
    gguf_arch="exaone4",
    aliases=("exaone4_5_text",),
    defaults={"rms_norm_eps": 1e-5},
)

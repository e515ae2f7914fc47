"""OLMo 3: OLMo 2 with sliding windows in three of four layers, whose rope is not scaled."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import FULL, SLIDING, windows
from mrs.layers.attention.config import biased_attention, read_ropes_of_kinds
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm, mlp = read_norm(config, default=1e-5), read_mlp(config)
    ropes = read_ropes_of_kinds(config, BASE)
    fields = {"qk_norm": norm, "qk_norm_whole": True}
    layers = []
    for window in windows(config, period=4):
        mixer = biased_attention(
            config, rope=ropes[SLIDING if window else FULL], window=window, **fields
        )
        layers.append(Layer(mixer, mlp, norm, style="post"))
    return decoder(config, "olmo3", layers, norm)


#: The base of rope if the config lacks it.
BASE = 5e5

FAMILY = Family(
    "olmo3",
    read,
    # Files of OLMo 2 have neither window nor scaling.
    gguf_arch="olmo2",
    defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096},
)

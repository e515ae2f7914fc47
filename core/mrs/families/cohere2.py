"""Command R7B and A: attention and MLP in parallel, no rope in layers without a window."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import windows
from mrs.layers.attention.config import read_windowed_rope
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_layer_norm


def read(config: Config) -> ModelSpec:
    norm = read_layer_norm(config, bias=False)
    local = windows(config, period=config.positive("sliding_window_pattern", 4))
    mixers, mlp = read_windowed_rope(config, local, interleaved=True), read_mlp(config)
    layers = [Layer(mixer, mlp, norm, style="parallel") for mixer in mixers]
    scale = config.number("logit_scale", 0.0625)
    return decoder(config, "cohere2", layers, norm, logit_scale=scale)


FAMILY = Family(
    "cohere2",
    read,
    gguf_arch="cohere2",
    defaults={"tie_word_embeddings": True, "sliding_window": 4096},
    gguf_keys={"logit_scale": "logit_scale"},
)

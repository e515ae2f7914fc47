"""SmolLM 3: Llama without rope in every fourth layer; optional sliding windows in those layers."""

from __future__ import annotations

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import read_window, rope_layers, windows
from mrs.layers.attention.config import biased_attention, read_head_rope
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm


def read(config: Config) -> ModelSpec:
    norm, has_rope = read_norm(config), rope_layers(config)
    mlp = read_mlp(config, bias=config.flag("mlp_bias", False))
    rope = read_head_rope(config, default_base=2e6)
    mixers = [
        biased_attention(config, rope=rope if rotates else None, window=window)
        for rotates, window in zip(has_rope, _windows(config, has_rope), strict=True)
    ]
    return decoder(config, "smollm3", [Layer(mixer, mlp, norm) for mixer in mixers], norm)


def _windows(config: Config, has_rope: list[bool]) -> list[int | None]:
    if config.has("layer_types") or not config.flag("use_sliding_window", False):
        return windows(config)
    return [None if rotates else read_window(config) for rotates in has_rope]


FAMILY = Family(
    "smollm3",
    read,
    gguf_arch="smollm3",
    defaults={
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
    gguf_rope_interleaved=True,
)

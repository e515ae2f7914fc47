"""LFM 3: LFM 2 with sandwich norms, gates of attention, and windows in half of its attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mrs.architecture.decoder_config import decoder, stack_layers
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import FULL, SLIDING, layer_count, layer_types, read_window
from mrs.layers.attention.config import biased_attention, read_ropes
from mrs.layers.mixer import Mixer
from mrs.layers.mlp.spec import Mlp, numbered_mlp_names
from mrs.layers.norm.config import read_norm
from mrs.layers.norm.spec import Norm
from mrs.layers.rope.config import with_default_rope
from mrs.layers.short_convolution.config import CONVOLUTION, read_convolution

_DEFAULT_ROPE = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e6},
}


def read(config: Config) -> ModelSpec:
    norm, mlp = read_norm(config, "norm_eps", 1e-5), Mlp(config.positive("intermediate_size"))
    style = "sandwich" if config.flag("use_sandwich_norm", True) else "pre"
    mixers = read_three_mixers(config, norm)
    layers = stack_layers(mixers, [mlp] * layer_count(config), norm, style=style)
    return decoder(config, "lfm3", layers, norm)


def read_three_mixers(config: Config, norm: Norm) -> list[Mixer]:
    """The mixer of each layer; without a list every second one is a convolution."""
    ropes = read_ropes(_rope_config(config))
    windows = {FULL: None, SLIDING: read_window(config)}
    gate = "sigmoid" if config.flag("use_attention_gate", True) else None
    mixers: dict[str, Mixer] = {
        kind: biased_attention(
            config,
            rope=ropes[kind],
            window=window,
            qk_norm=norm,
            output_gate=gate,
            gates_heads=gate is not None,
        )
        for kind, window in windows.items()
    }
    mixers[CONVOLUTION] = read_convolution(config)
    return [mixers[kind] for kind in _kinds(config)]


def _kinds(config: Config) -> Sequence[str]:
    if config.has("layer_types"):
        return layer_types(config, CONVOLUTION, FULL, SLIDING)
    period = (SLIDING, CONVOLUTION, FULL, CONVOLUTION)
    return [CONVOLUTION, *(period[layer % 4] for layer in range(1, layer_count(config)))]


def _rope_config(config: Config) -> Config:
    """The config with the rope that published files mean.

    They call it `default` where the first pairs of whole heads turn.
    """
    if not config.has("rope_theta"):
        config = with_default_rope(config, _DEFAULT_ROPE)
    ropes = {kind: _renamed(rope) for kind, rope in config.mapping("rope_parameters").items()}
    return config.changed({"rope_parameters": ropes})


def _renamed(rope: object) -> object:
    if not isinstance(rope, Mapping) or rope.get("partial_rotary_factor") is None:
        return rope
    is_default = rope.get("rope_type", "default") == "default"
    return {**rope, "rope_type": "proportional"} if is_default else rope


FAMILY = Family(
    "lfm3",
    read,
    defaults={
        "vocab_size": 128_000,
        "hidden_size": 2048,
        "intermediate_size": 7680,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "max_position_embeddings": 128_000,
        "tie_word_embeddings": True,
        "conv_L_cache": 7,
        "sliding_window": 256,
    },
    safetensors={
        "norm": "model.embedding_norm",
        "mixer.norm": "operator_norm",
        "mixer.post_norm": "post_operator_norm",
        "ffn.norm": "ffn_norm",
        "ffn.post_norm": "post_ffn_norm",
        **numbered_mlp_names("ffn", "feed_forward"),
    },
)

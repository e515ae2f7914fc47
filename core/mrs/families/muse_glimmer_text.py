"""Muse Glimmer: normalized embeddings, attention with an output gate, sandwich norms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import FULL, SLIDING, layer_count, of_layers, windows
from mrs.errors import Unsupported
from mrs.layers.attention.config import biased_attention, read_head_rope, read_heads
from mrs.layers.layer import Layer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm

#: The key that lists the base of each layer, 0 for none.
_BASES = "layer_rope_theta"
#: The last layer, and every fourth one before it, attends to all tokens and has no rope.
_PERIOD = 4


def read(config: Config) -> ModelSpec:
    norm, post_norm = read_norm(config, default=1e-5), read_norm(config, "post_norm_eps", 1e-8)
    mlp = read_mlp(config, activation=config.activation("silu", "hidden_activation"))
    fields: dict[str, Any] = {"qk_norm": norm, "output_gate": "sigmoid"}
    if not config.flag("has_qk_norm", False):  # in GGUF files its weights are the factor
        factor = config.number("qk_scale_factor", 3.87)
        fields["qk_norm"] = replace(norm, learned=False)
        fields["scale"] = factor * read_heads(config)[2] ** -0.5
    rope, local = read_head_rope(config), windows_from_end(config)
    mixers = [
        biased_attention(config, window=window, rope=rope if rotates else None, **fields)
        for rotates, window in zip(rotating_layers(config), local, strict=True)
    ]
    return decoder(
        config,
        "muse_glimmer_text",
        [Layer(mixer, mlp, norm, style="sandwich", post_norm=post_norm) for mixer in mixers],
        norm,
        embedding_norm=norm,
        logit_scale=config.number("output_multiplier", 0.19611613513818404),
        logit_softcap=config.positive_number("final_logit_softcapping", 20.0),
    )


def windows_from_end(config: Config) -> list[int | None]:
    """The window of each layer; None for the last one and every fourth one before it.

    The config may list the types of layers instead.
    """
    kinds = [FULL if is_full else SLIDING for is_full in _full_layers(config)]
    return windows(config if config.has("layer_types") else config.changed({"layer_types": kinds}))


def rotating_layers(config: Config) -> list[bool]:
    """Whether each layer has rope: by default all but the last one and every fourth one before it.

    The config may list the base of each layer, 0 for none; others than the model's are refused.
    In GGUF files the layers with a window have rope.
    """
    if config.flag("rotates_in_windows", False):
        return [window is not None for window in windows_from_end(config)]
    if not config.has(_BASES):
        return [not is_full for is_full in _full_layers(config)]
    bases, allowed = of_layers(config, _BASES), (0, read_head_rope(config).base)
    if any(base not in allowed for base in bases):
        raise Unsupported(f"{_BASES} = {list(bases)} is not supported", where=config.where)
    return [base != 0 for base in bases]


def _full_layers(config: Config) -> list[bool]:
    """Whether each layer is the last one or a fourth one before it."""
    count = layer_count(config)
    return [(count - 1 - layer) % _PERIOD == 0 for layer in range(count)]


FAMILY = Family(
    "muse_glimmer_text",
    read,
    gguf_arch="muse-glimmer",
    defaults={"num_key_value_heads": 2, "head_dim": 128, "sliding_window": 2048}
    | {"max_position_embeddings": 131_072},
    safetensors={"ffn.norm": "pre_feedforward_layernorm"},
    gguf_keys={"output_multiplier": "logit_scale"},
    gguf_defaults={"rotates_in_windows": True},
    gguf_rope_interleaved=True,
    norm_plus_one="layers",
)

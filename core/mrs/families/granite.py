"""Granite 3: Llama with multipliers for embeddings, attention scores, residuals and logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mrs.architecture.decoder_config import decoder
from mrs.architecture.family import Family
from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.config.layer_kinds import layer_count
from mrs.layers.attention.config import biased_attention, read_heads
from mrs.layers.attention.spec import Attention
from mrs.layers.layer import Layer
from mrs.layers.mixer import FeedForward, Mixer
from mrs.layers.mlp.config import read_mlp
from mrs.layers.norm.config import read_norm
from mrs.layers.norm.spec import Norm

#: Config key -> metadata key of GGUF files.
MULTIPLIERS_GGUF_KEYS = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "rope_finetuned": "rope.scaling.finetuned",
}


def read(config: Config) -> ModelSpec:
    norm, mlp = read_norm(config), read_mlp(config, bias=config.flag("mlp_bias", False))
    mixers = [read_scaled_attention(config)] * layer_count(config)
    layers = stack_scaled_layers(config, mixers, mlp, norm)
    return decoder(config, "granite", layers, norm, **read_multipliers(config))


def read_scaled_attention(config: Config, **changes: Any) -> Attention:
    """Attention with a factor of its scores; `changes` override its fields.

    GGUF files of models without rope say that it is not finetuned.
    """
    if not config.flag("rope_finetuned", True):
        changes.setdefault("rope", None)
    scale = config.number("attention_multiplier", read_heads(config)[2] ** -0.5)
    return biased_attention(config, scale=scale, **changes)


def stack_scaled_layers(
    config: Config, mixers: Sequence[Mixer], feed_forward: FeedForward, norm: Norm
) -> list[Layer]:
    """The layers of these mixers, with a factor of what they add."""
    scale = config.number("residual_multiplier", 1.0)
    return [Layer(mixer, feed_forward, norm, residual_scale=scale) for mixer in mixers]


def read_multipliers(config: Config) -> dict[str, float]:
    """The factors of embeddings and logits."""
    return {
        "embedding_scale": config.number("embedding_multiplier", 1.0),
        "logit_scale": 1 / config.positive_number("logits_scaling", 1.0),
    }


FAMILY = Family(
    "granite",
    read,
    gguf_arch="granite",
    defaults={"attention_multiplier": 1.0},
    gguf_keys=MULTIPLIERS_GGUF_KEYS,
    gguf_rope_interleaved=True,
)

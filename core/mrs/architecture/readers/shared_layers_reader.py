"""Read what small models have: keys and values that layers share, and per-layer embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mrs.architecture.altup import AltUp
from mrs.architecture.config import Config
from mrs.architecture.layer_inputs import GatedInput, LayerInputs
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mixer import FeedForward, Mixer
from mrs.architecture.mixers.shared_attention_spec import SharedAttention
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.norm_rope import Norm
from mrs.architecture.readers.layer_reader import read_gelu, scaled_decoder, stack_layers
from mrs.errors import NotReadable

#: Config key -> metadata key of GGUF files.
SHARED_LAYERS_GGUF_KEYS = {
    "hidden_size_per_layer_input": "embedding_length_per_layer_input",
    "num_kv_shared_layers": "attention.shared_kv_layers",
}


def share_kv(config: Config, mixers: Sequence[Attention]) -> list[Mixer]:
    """The mixers, of which the last `num_kv_shared_layers` read the cache of the last one alike."""
    first_shared = len(mixers) - config.integer("num_kv_shared_layers", 0)
    owners = {mixer: layer for layer, mixer in enumerate(mixers[: max(first_shared, 0)])}
    if first_shared < 1 or any(mixer not in owners for mixer in mixers[first_shared:]):
        raise NotReadable(
            f"num_kv_shared_layers = {len(mixers) - first_shared}, but no other layer is like the "
            "last ones",
            where=config.where,
        )
    return [
        *mixers[:first_shared],
        *(SharedAttention(mixer, owners[mixer]) for mixer in mixers[first_shared:]),
    ]


def per_layer_decoder(
    config: Config,
    family: str,
    mixers: Sequence[Mixer],
    feed_forward: Sequence[FeedForward],
    norm: Norm,
    *,
    altup: AltUp | None = None,
    **changes: Any,
) -> ModelSpec:
    """A decoder whose layers have embeddings, if the config says so; `changes` are of layers."""
    activation, size = read_gelu(config), config.integer("hidden_size_per_layer_input", 0)
    gated_input = GatedInput(size, activation, norm) if size else None
    layers = stack_layers(
        mixers,
        feed_forward,
        norm,
        style="sandwich",
        gated_input=gated_input,
        altup=altup,
        **changes,
    )
    inputs = _read_layer_inputs(config, size, norm) if size else None
    return scaled_decoder(config, family, layers, norm, layer_inputs=inputs, altup=altup)


def _read_layer_inputs(config: Config, size: int, norm: Norm) -> LayerInputs:
    rows, pad = config.positive("vocab_size_per_layer_input"), config.integer("pad_token_id", 0)
    return LayerInputs(rows, size, norm, pad if pad < rows else 0)

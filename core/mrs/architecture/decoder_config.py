"""Read what models have beside their layers' modules: norms, sizes, layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mrs.architecture.model_spec import ModelSpec
from mrs.config.config import Config
from mrs.layers.altup.spec import AltUp
from mrs.layers.layer import Layer
from mrs.layers.layer_inputs.spec import GatedInput, LayerInputs
from mrs.layers.mixer import FeedForward, Mixer
from mrs.layers.mlp.config import read_gelu
from mrs.layers.norm.spec import Norm


def stack_layers(
    mixers: Sequence[Mixer], feed_forward: Sequence[FeedForward], norm: Norm, **changes: Any
) -> list[Layer]:
    """The layers of these modules; `changes` override fields of all layers."""
    return [
        Layer(mixer, each, norm, **changes)
        for mixer, each in zip(mixers, feed_forward, strict=True)
    ]


def decoder(
    config: Config, family: str, layers: Sequence[Layer], norm: Norm | None, **changes: Any
) -> ModelSpec:
    """The spec of a model with these layers; `changes` override its fields."""
    fields: dict[str, Any] = {
        "tied_head": config.flag("tie_word_embeddings", False),
        "context_tokens": read_context_tokens(config, layers),
        **changes,
    }
    return ModelSpec(
        family=family,
        vocab_size=config.positive("vocab_size"),
        hidden_size=config.positive("hidden_size"),
        layers=tuple(layers),
        norm=norm,
        **fields,
    )


def read_context_tokens(config: Config, layers: Sequence[Layer]) -> int:
    """The trained length, or that up to which the layers' rope is scaled."""
    ropes = {layer.mixer.rope for layer in layers}
    scaled = [rope.scaling.scaled_tokens for rope in ropes if rope is not None and rope.scaling]
    return max(config.positive("max_position_embeddings", 2048), *scaled, 0)


def scaled_decoder(
    config: Config, family: str, layers: Sequence[Layer], norm: Norm, **changes: Any
) -> ModelSpec:
    """The same with embeddings times sqrt(hidden_size), and with capped logits if it says so."""
    scale = config.positive("hidden_size") ** 0.5
    softcap = config.optional_number("final_logit_softcapping")
    fields = {"embedding_scale": scale, "logit_softcap": softcap, **changes}
    return decoder(config, family, layers, norm, **fields)


#: Config key -> metadata key of GGUF files.
SHARED_LAYERS_GGUF_KEYS = {
    "hidden_size_per_layer_input": "embedding_length_per_layer_input",
    "num_kv_shared_layers": "attention.shared_kv_layers",
}


def per_layer_decoder(
    config: Config,
    family: str,
    mixers: Sequence[Mixer],
    feed_forward: Sequence[FeedForward],
    norm: Norm,
    *,
    altup: AltUp | None = None,
    has_table: bool = True,
    **changes: Any,
) -> ModelSpec:
    """A decoder whose layers have embeddings, if the config says so; `changes` are of layers.

    Without a table these follow from the tokens' embeddings alone.
    """
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
    inputs = _read_layer_inputs(config, size, norm, has_table=has_table) if size else None
    return scaled_decoder(config, family, layers, norm, layer_inputs=inputs, altup=altup)


def _read_layer_inputs(config: Config, size: int, norm: Norm, *, has_table: bool) -> LayerInputs:
    if not has_table:
        return LayerInputs(0, size, norm)
    rows, pad = config.positive("vocab_size_per_layer_input"), config.integer("pad_token_id", 0)
    return LayerInputs(rows, size, norm, pad if pad < rows else 0)

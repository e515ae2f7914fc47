"""The architecture of a whole model, as frozen values that planner and loader read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from mrs.errors import Unsupported
from mrs.layers.attention.spec import EncoderAttention
from mrs.layers.cross_attention.spec import CrossAttention
from mrs.layers.first_input.spec import FirstInput
from mrs.layers.layer import Layer
from mrs.layers.mixer import Mixer
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots

if TYPE_CHECKING:
    from mrs.architecture.pooler import Pooler, Ranking
    from mrs.architecture.vision_spec import Vision
    from mrs.layers.altup.spec import AltUp
    from mrs.layers.joined_input.spec import JoinedInput
    from mrs.layers.layer_inputs.spec import LayerInputs


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only model: embedding, layers, final norm, head; `vision` for a vision model.

    logits = softcap(logit_scale * head(norm(layers(embedding_scale * embedding[ids])))), where
    softcap(x) is logit_softcap * tanh(x / logit_softcap), or x without a `logit_softcap`.
    `embedding_norm` is an RMS norm of the tokens' embeddings, without weights.
    `extra_tokens` are ids after the vocabulary: the embedding has rows for them, the head does not.
    Embeddings of another `embedding_size` are mapped linearly to the hidden size before everything
    else, and hidden states back before the head.
    `layer_inputs` are inputs of the layers in addition to x; `altup` makes x several streams.
    `file_layers` are the indices of `layers` in the file; empty if the file has no other layers.

    The first layer reads `input`, or the embeddings alone; that of a draft head a joined one. A
    model with a `pooler` has no head: it makes a vector of each text. The output of an encoder's
    layers may have no further `norm`. `ranking` is that of a reranker.
    """

    family: str
    vocab_size: int
    hidden_size: int
    layers: tuple[Layer, ...]
    norm: Norm | None
    tied_head: bool
    context_tokens: int
    embedding_scale: float = 1.0
    embedding_norm: Norm | None = None
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    head_bias: bool = False
    vision: Vision | None = None
    extra_tokens: int = 0
    file_layers: tuple[int, ...] = ()
    layer_inputs: LayerInputs | None = None
    altup: AltUp | None = None
    input: FirstInput | JoinedInput | None = None
    pooler: Pooler | None = None
    ranking: Ranking | None = None
    embedding_size: int | None = None

    @property
    def attends_both_ways(self) -> bool:
        """Whether tokens attend to later ones, so that one step must compute a whole sequence."""
        return any(isinstance(layer.mixer, EncoderAttention) for layer in self.layers)

    def require_replies(self) -> None:
        """Raise Unsupported if the model makes no logits."""
        if self.pooler is not None:
            raise Unsupported(
                f"this {self.family} model makes {self.pooler.product} of texts, but no replies",
                hint=f"use {self.pooler.commands}",
            )

    def require_embeddings(self, dimensions: int | None = None) -> None:
        """Raise Unsupported if there are no embeddings, or none of `dimensions` values."""
        pooler = self.pooler
        if pooler is not None and pooler.is_score:
            raise Unsupported(
                "the model makes scores of texts and no embeddings", hint=f"use {pooler.commands}"
            )
        if dimensions is not None and pooler is None:
            raise Unsupported("embeddings of a model for replies cannot be shortened")
        if dimensions is not None and pooler is not None:
            pooler.check_dimensions(dimensions)

    def require_classes(self) -> Pooler:
        """What makes scores of classes. Raises Unsupported for any other model."""
        if self.pooler is None or not self.pooler.has_classes:
            raise Unsupported("the model does not classify texts", hint="load a classifier")
        return self.pooler

    @property
    def head_weight(self) -> str:
        """The parameter that makes logits; without a head, the embedding."""
        has_own_head = self.pooler is None and not self.tied_head
        return "head.weight" if has_own_head else "embedding.weight"

    @property
    def file_layer_indices(self) -> tuple[int, ...]:
        """The index of each layer in the file."""
        return self.file_layers or tuple(range(len(self.layers)))

    def slots(self) -> Iterator[Slot]:
        """The weights outside of the layers."""
        width = self.embedding_size or self.hidden_size
        own = self.input.width if isinstance(self.input, FirstInput) else None
        yield Slot("embedding", (self.vocab_size + self.extra_tokens, own or width), "embedding")
        if self.embedding_size is not None:
            yield Slot("embedding_in", (self.hidden_size, width))
            yield Slot("embedding_out", (width, self.hidden_size))
        if self.input is not None:
            yield from self.input.slots(self.hidden_size)
        if self.norm is not None:
            yield from norm_slots("norm", self.hidden_size, self.norm, kind="final_norm")
        if self.pooler is not None:
            yield from self.pooler.slots()
        elif not self.tied_head:
            yield Slot("head", (self.vocab_size, width), "head", self.head_bias)
        elif self.head_bias:
            yield Slot("head", (self.vocab_size,), "vector", suffix=".bias")
        if self.altup is not None:
            yield from self.altup.model_slots(self.hidden_size)
        if self.layer_inputs is not None:
            yield from self.layer_inputs.slots(self.hidden_size, len(self.layers))
        shared = (layer.mixer.shared_slots(self.hidden_size) for layer in self.layers)
        yield from dict.fromkeys(chain.from_iterable(shared))
        for name, pairs in sorted(_factor_tables(self)):
            yield Slot(name, (pairs,), "vector")

    def without_cross_attention(self) -> ModelSpec:
        """The same model without its cross-attention layers, which do nothing without images."""
        indices = tuple(
            index
            for index, layer in enumerate(self.layers)
            if not isinstance(layer.mixer, CrossAttention)
        )
        if len(indices) == len(self.layers):
            return self
        return replace(
            self, layers=tuple(self.layers[index] for index in indices), file_layers=indices
        )

    def unused_names(self, names: Mapping[str, str]) -> list[str]:
        """Prefixes of names of tensors, in a table of names, that its layers do not read."""
        return [
            names["layer"].format(layer=index) + names[slot]
            for index, layer in zip(self.file_layer_indices, self.layers, strict=True)
            for slot in layer.mixer.unused_slots
        ]

    def with_interleaved_rope(self) -> ModelSpec:
        """The same model with adjacent rotary pairs, as in GGUF files with permuted q and k."""
        return replace(self, layers=tuple(_interleaved(layer) for layer in self.layers))


def _interleaved(layer: Layer) -> Layer:
    if layer.mixer.rope is None:
        return layer
    rope = replace(layer.mixer.rope, interleaved=True)
    mixer: Mixer = replace(cast(Any, layer.mixer), rope=rope)
    return replace(layer, mixer=mixer)


def _factor_tables(spec: ModelSpec) -> set[tuple[str, int]]:
    """(slot, rotary pairs) of frequency factors that are tensors of the file."""
    ropes = {layer.mixer.rope for layer in spec.layers}
    tables = set()
    for rope in ropes:
        if rope is not None and rope.scaling is not None:
            tables |= {(slot, rope.dim // 2) for slot in rope.scaling.file_slots}
    return tables

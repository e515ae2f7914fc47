"""The architecture of a whole model, as frozen values that planner and loader read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mrs.architecture.layers import CrossAttention, Layer, Mixer, Norm
from mrs.architecture.vision_spec import Vision


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only model: embedding, layers, final norm, head; `vision` for a vision model.

    logits = softcap(logit_scale * head(norm(layers(embedding_scale * embedding[ids])))), where
    softcap(x) is logit_softcap * tanh(x / logit_softcap), or x without a `logit_softcap`.
    `extra_tokens` are ids after the vocabulary: the embedding has rows for them, the head does not.
    `file_layers` are the indices of `layers` in the file; empty if the file has no other layers.
    """

    family: str
    vocab_size: int
    hidden_size: int
    layers: tuple[Layer, ...]
    norm: Norm
    tied_head: bool
    context_tokens: int
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    head_bias: bool = False
    vision: Vision | None = None
    extra_tokens: int = 0
    file_layers: tuple[int, ...] = ()

    @property
    def file_layer_indices(self) -> tuple[int, ...]:
        """The index of each layer in the file."""
        return self.file_layers or tuple(range(len(self.layers)))

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

    def with_interleaved_rope(self) -> ModelSpec:
        """The same model with adjacent rotary pairs, as in GGUF files with permuted q and k."""
        return replace(self, layers=tuple(_interleaved(layer) for layer in self.layers))


def _interleaved(layer: Layer) -> Layer:
    if layer.mixer.rope is None:
        return layer
    rope = replace(layer.mixer.rope, interleaved=True)
    mixer: Mixer = replace(layer.mixer, rope=rope)
    return replace(layer, mixer=mixer)

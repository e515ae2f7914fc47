"""The description of a whole model, which planner and loader both read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mrs.architecture.layers import CrossAttention, Layer, Mixer, Norm
from mrs.architecture.vision_spec import Vision


@dataclass(frozen=True)
class ModelSpec:
    """A whole decoder: embedding, layers, final norm, head; and what sees for it, if it does.

    `extra_tokens` follow on the vocabulary: the embedding has them, the head never makes them.
    `file_layers` are the numbers that the layers have in the file, where some are left out there.
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
    def layer_numbers(self) -> tuple[int, ...]:
        """The number of each layer in the file."""
        return self.file_layers or tuple(range(len(self.layers)))

    def for_text_alone(self) -> ModelSpec:
        """The same model without the layers that look at pictures: with none they do nothing."""
        numbers = range(len(self.layers))
        kept = [n for n in numbers if not isinstance(self.layers[n].mixer, CrossAttention)]
        if len(kept) == len(self.layers):
            return self
        layers = tuple(self.layers[n] for n in kept)
        return replace(self, layers=layers, file_layers=tuple(kept))

    def with_interleaved_rope(self) -> ModelSpec:
        """The same model with rotary pairs side by side, as permuted GGUF files have them."""
        return replace(self, layers=tuple(_interleaved(layer) for layer in self.layers))


def _interleaved(layer: Layer) -> Layer:
    if layer.mixer.rope is None:
        return layer
    rope = replace(layer.mixer.rope, interleaved=True)
    mixer: Mixer = replace(layer.mixer, rope=rope)
    return replace(layer, mixer=mixer)

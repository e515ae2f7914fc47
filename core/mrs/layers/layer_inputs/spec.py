"""Per-layer embeddings: an input of each layer that depends on the token alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.config.activations import Activation
from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots


@dataclass(frozen=True)
class LayerInputs:
    """`size` values for each layer and token, from a table of their own.

    For a token with the embedding e, after `embedding_scale`, all layers' inputs together are
    (norm(projection(e) / sqrt(hidden_size)) + sqrt(size) * table[id]) / sqrt(2), where the norm is
    over the `size` values of one layer. Tokens beyond the `vocab_size` of the table have row 0,
    those of images the row `image_row`. With a `vocab_size` of 0 there is no table, and inputs are
    norm(projection(e) / sqrt(hidden_size)).
    """

    vocab_size: int
    size: int
    norm: Norm
    image_row: int = 0

    def slots(self, hidden_size: int, layers: int) -> Iterator[Slot]:
        """The weights outside of the layers."""
        total = layers * self.size
        if self.vocab_size:
            yield Slot("layer_inputs.table", (self.vocab_size, total), "embedding")
        yield Slot("layer_inputs.projection", (total, hidden_size))
        yield from norm_slots("layer_inputs.norm", self.size, self.norm)


@dataclass(frozen=True)
class GatedInput:
    """What a layer adds to x: norm(projection(activation(gate(x)) * layer_input))."""

    size: int
    activation: Activation
    norm: Norm

    def slots(self, hidden_size: int) -> Iterator[Slot]:
        """The weights in one layer."""
        yield Slot("input.gate", (self.size, hidden_size))
        yield Slot("input.projection", (hidden_size, self.size))
        yield from norm_slots("input.norm", hidden_size, self.norm)

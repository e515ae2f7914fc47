"""Several residual streams, of which each layer computes one (AltUp, arXiv 2301.13310)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mrs.layers.norm.spec import Norm
from mrs.layers.slots import Slot, norm_slots


@dataclass(frozen=True)
class AltUp:
    """A hidden state of `streams` vectors; x of the layers is (N, streams * hidden_size).

    A layer predicts all streams by a linear combination of them, computes the `active` one, and
    corrects all by multiples of what it got wrong. The coefficients depend on the token. What a
    `gated_input` adds goes to all streams but the first; it reads the active stream, times a
    learned vector if it is `scaled`. The first streams are linear maps of the embedding; the mean
    of linear maps of the last ones goes to the final norm. Both have the magnitude of stream 0.
    """

    streams: int
    active: int
    scaled: bool
    norm: Norm

    def model_slots(self, hidden_size: int) -> Iterator[Slot]:
        """The weights outside of the layers."""
        for name in ("altup.into.{expert}", "altup.out.{expert}"):
            yield Slot(name, (hidden_size, hidden_size), experts=self.streams - 1)

    def layer_slots(self, hidden_size: int) -> Iterator[Slot]:
        """The weights in one layer."""
        count = self.streams
        yield from norm_slots("altup.norm", hidden_size, self.norm)
        yield Slot("altup.router", (count, hidden_size), "vector")
        yield Slot("altup.prediction", (count * count, count), "vector")
        yield Slot("altup.correction", (count, count), "vector")
        yield Slot("altup.scale", (hidden_size,), "vector", suffix="")

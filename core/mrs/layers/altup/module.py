"""Several residual streams (AltUp), of which each layer computes one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from mrs.kernels.dense_products import linear
from mrs.layers.altup.spec import AltUp
from mrs.model.batch import ForwardBatch
from mrs.model.linear import Linear
from mrs.model.model_weights import ModelWeights
from mrs.model.modules import TokenMixer

#: Least mean square of a stream before it is divided by its magnitude.
_LEAST_SQUARE = 1e-5


class StreamsModule:
    """Makes the streams of the embeddings, and one hidden state of the streams."""

    def __init__(self, config: AltUp, weights: ModelWeights) -> None:
        self._streams = config.streams
        others = range(config.streams - 1)
        self._into = [weights.linear(f"altup.into.{n}") for n in others]
        self._out = [weights.linear(f"altup.out.{n}") for n in others]

    def split(self, x: Tensor) -> Tensor:
        """x (N, hidden) to (N, streams * hidden)."""
        return torch.cat(_alike(x, self._into, [x] * len(self._into)), dim=1)

    def join(self, x: Tensor) -> Tensor:
        """x (N, streams * hidden) to (N, hidden)."""
        first, *others = x.chunk(self._streams, dim=1)
        streams = _alike(first, self._out, [other.contiguous() for other in others])
        return torch.stack(streams).mean(0)


def _alike(first: Tensor, maps: Sequence[Linear], inputs: Sequence[Tensor]) -> list[Tensor]:
    """`first`, and the mapped inputs with the magnitude of it."""
    magnitude = _mean_square(first).sqrt()
    streams = [first]
    for map_, x in zip(maps, inputs, strict=True):
        mapped = map_(x)
        factor = magnitude / _mean_square(mapped).clamp(min=_LEAST_SQUARE).sqrt()
        streams.append(mapped.mul_(factor.to(mapped.dtype)))
    return streams


def _mean_square(x: Tensor) -> Tensor:
    return x.float().square().mean(-1, keepdim=True)


class AltUpModule:
    """Predicts and corrects the streams of one layer."""

    def __init__(self, config: AltUp, weights: ModelWeights) -> None:
        self._config = config
        self._norm = weights.norm("altup.norm", config.norm)
        self._router = weights.vector("altup.router.weight")
        self._prediction = weights.vector("altup.prediction.weight")
        self._correction = weights.vector("altup.correction.weight")
        self._scale = weights.vector("altup.scale") if config.scaled else None

    def predict(self, x: Tensor) -> Tensor:
        """x (N, streams * hidden) to (N, streams, hidden)."""
        count = self._config.streams
        streams = x.view(x.shape[0], count, -1)
        weights = linear(self._weigh(self.active(streams)), self._prediction)
        weights = weights.view(-1, count, count, 1).to(x.dtype)
        out = streams.clone()
        for stream in range(count):
            out.addcmul_(weights[:, :, stream], streams[:, stream : stream + 1])
        return out

    def active(self, streams: Tensor) -> Tensor:
        """The stream (N, hidden) that the layer computes."""
        return streams[:, self._config.active].contiguous()

    def correct(self, predicted: Tensor, computed: Tensor) -> Tensor:
        """All streams (N, streams, hidden), now that the active one (N, hidden) is computed."""
        weights = linear(self._weigh(computed), self._correction).add_(1).to(computed.dtype)
        wrong = computed - self.active(predicted)
        return torch.addcmul(predicted, wrong[:, None], weights[:, :, None])

    def input_of_gate(self, streams: Tensor) -> Tensor:
        """What a gated input reads: (N, hidden)."""
        x = self.active(streams)
        return x if self._scale is None else x * self._scale.to(x.dtype)

    def _weigh(self, x: Tensor) -> Tensor:
        """x (N, hidden) to (N, streams) float32 between -1 and 1."""
        return linear(self._norm(x), self._router).mul_(1 / x.shape[1]).tanh_()


class InnerLayer(Protocol):
    """The layer that computes the active stream."""

    mixer: TokenMixer

    def compute(self, x: Tensor, batch: ForwardBatch, cache: Any) -> Tensor:
        """x (N, hidden) to (N, hidden)."""

    def own_input(self, x: Tensor, batch: ForwardBatch) -> Tensor | None:
        """What the layer's own input adds, (N, hidden), if it has one."""


class AltUpLayer:
    """A layer of several streams."""

    fused = None

    def __init__(self, config: AltUp, inner: InnerLayer, weights: ModelWeights) -> None:
        self._altup, self._inner = AltUpModule(config, weights), inner
        self.mixer = inner.mixer

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Any) -> Tensor:
        """x (N, streams * hidden) to the same shape."""
        predicted = self._altup.predict(x)
        computed = self._inner.compute(self._altup.active(predicted), batch, cache)
        streams = self._altup.correct(predicted, computed)
        added = self._inner.own_input(self._altup.input_of_gate(streams), batch)
        if added is not None:
            streams[:, 1:] += added[:, None]
        return streams.flatten(1)

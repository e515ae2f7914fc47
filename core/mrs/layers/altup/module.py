"""Several residual streams (AltUp): made of the embeddings, and joined before the head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mrs.layers.altup.spec import AltUp
from mrs.model.linear import Linear
from mrs.model.model_weights import ModelWeights

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

"""Adjacent ordinary layers, which few tokens of one sequence pass in one native call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor

from mrs.cache.layer import KeyValueCache
from mrs.kernels.layer import FeedForwardHalf
from mrs.kernels.layer_run import LayerRun
from mrs.model.halves import FusedAttention, angles_of
from mrs.model.segments import Segment

#: Both halves of a layer, where the native library computes them.
FusedLayer = tuple[FusedAttention, FeedForwardHalf]

#: Weights that one call reads, about: a Ctrl-C is answered between two calls.
_RUN_BYTES = 2 << 30


class FusedLayers:
    """The layers of `places`, one after another, for few tokens of one sequence."""

    def __init__(self, first: int, layers: Sequence[FusedLayer]) -> None:
        self.places = range(first, first + len(layers))
        ropes = [attention.rope for attention, _ in layers]
        self._ropes = list(dict.fromkeys(ropes))
        self._run = LayerRun(
            [(attention.half, feed_forward) for attention, feed_forward in layers],
            [self._ropes.index(rope) for rope in ropes],
        )

    def takes(self, x: Tensor, segments: list[Segment]) -> bool:
        return len(segments) == 1 and segments[0].last_seen is None and self._run.takes(x)

    def __call__(self, x: Tensor, segment: Segment) -> Tensor:
        """x (N, hidden) to (N, hidden)."""
        layers = segment.memory.layers
        caches = [cast(KeyValueCache, layers[place]) for place in self.places]
        start = caches[0].length
        angles = [angles_of(rope, segment, start) for rope in self._ropes]
        return self._run(x, angles, [cache.extend(len(x)) for cache in caches])


def find_runs(layers: Sequence[FusedLayer | None]) -> dict[int, FusedLayers]:
    """The runs of a model's layers, of which None are others, by the place of their first."""
    runs: dict[int, FusedLayers] = {}
    run: list[FusedLayer] = []
    for place, layer in enumerate([*layers, None]):
        if run and (layer is None or _weight_bytes(run) >= _RUN_BYTES):
            first = place - len(run)
            runs[first] = FusedLayers(first, run)
            run = []
        if layer is not None:
            run.append(layer)
    return runs


def _weight_bytes(run: Sequence[FusedLayer]) -> int:
    return sum(attention.half.weight_bytes + after.weight_bytes for attention, after in run)

"""Adjacent ordinary layers, which few tokens pass in one native call."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mrs.cache.paged_kv import PagedKVCache
from mrs.kernels.cpu.fused_layer import NativeMlpBlock
from mrs.kernels.cpu.fused_layer_chain import NativeLayerChain
from mrs.model.batch import ForwardBatch
from mrs.model.fused_blocks import FusedAttentionBlock

#: Both halves of a layer, where the native library computes them.
FusedLayer = tuple[FusedAttentionBlock, NativeMlpBlock]

#: Weights that one call reads, about: a Ctrl-C is answered between two calls.
_RUN_BYTES = 2 << 30


class FusedLayerChain:
    """The layers of `places`, one after another, for few tokens."""

    def __init__(self, first: int, layers: Sequence[FusedLayer]) -> None:
        self.places = range(first, first + len(layers))
        self._layers = layers
        ropes = [attention.rope for attention, _ in layers]
        self._ropes = list(dict.fromkeys(ropes))
        self._runs: dict[tuple[int, ...], NativeLayerChain] = {}
        self._run = self._grouped((0,) * len(layers))

    def takes(self, x: Tensor, batch: ForwardBatch) -> bool:
        return not batch.has_attention_ends and self._run.takes(x)

    def __call__(
        self, x: Tensor, batch: ForwardBatch, caches: Sequence[Sequence[PagedKVCache]]
    ) -> Tensor:
        """x (N, hidden) to (N, hidden); `caches` are those of all of the model's layers."""
        own = [caches[place][0] for place in self.places]
        run = self._grouped(tuple(cache.group for cache in own))
        angles = [rope.angles(batch) for rope in self._ropes]
        return run(x, angles, [cache.kv for cache in own], batch.attention)

    def _grouped(self, groups: tuple[int, ...]) -> NativeLayerChain:
        """The run where each layer's keys lie in the pool of its group."""
        if groups not in self._runs:
            self._runs[groups] = NativeLayerChain(
                [(attention.half, feed_forward) for attention, feed_forward in self._layers],
                [self._ropes.index(attention.rope) for attention, _ in self._layers],
                groups,
            )
        return self._runs[groups]


def find_runs(layers: Sequence[FusedLayer | None]) -> dict[int, FusedLayerChain]:
    """The runs of a model's layers, of which None are others, by the place of their first."""
    runs: dict[int, FusedLayerChain] = {}
    run: list[FusedLayer] = []
    for place, layer in enumerate([*layers, None]):
        if run and (layer is None or _weight_bytes(run) >= _RUN_BYTES):
            first = place - len(run)
            runs[first] = FusedLayerChain(first, run)
            run = []
        if layer is not None:
            run.append(layer)
    return runs


def _weight_bytes(run: Sequence[FusedLayer]) -> int:
    return sum(attention.half.weight_bytes + after.weight_bytes for attention, after in run)

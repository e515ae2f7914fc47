"""Chains of adjacent fused layers, which one native call computes for a few tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from mrs.cache.paged_kv import PagedKVCache
from mrs.kernels.cpu.fused_layer import NativeMlpBlock
from mrs.kernels.cpu.fused_layer_chain import NativeLayerChain
from mrs.model.batch import ForwardBatch
from mrs.model.fused_blocks import FusedAttentionBlock

#: A chain ends once its layers have this many bytes of weights: Ctrl-C is handled between chains.
_CHAIN_BYTES = 2 << 30


class FusedLayer(NamedTuple):
    """A layer whose two blocks are both computed by the native library."""

    attention: FusedAttentionBlock
    mlp: NativeMlpBlock

    @property
    def weight_bytes(self) -> int:
        return self.attention.native.weight_bytes + self.mlp.weight_bytes


class FusedLayerChain:
    """Adjacent layers of a model, by `layer_indices`, for batches of a few tokens."""

    def __init__(self, first: int, layers: Sequence[FusedLayer]) -> None:
        self.layer_indices = range(first, first + len(layers))
        self._layers = layers
        ropes = [layer.attention.rope for layer in layers]
        #: The different ropes of the layers.
        self.ropes = list(dict.fromkeys(ropes))
        self._native_chains: dict[tuple[int, ...], NativeLayerChain] = {}
        self._any_native = self.native_chain((0,) * len(layers))

    def supports(self, x: Tensor, batch: ForwardBatch) -> bool:
        return not batch.has_attention_ends and self._any_native.supports(x)

    def __call__(
        self, x: Tensor, batch: ForwardBatch, caches: Sequence[Sequence[PagedKVCache]]
    ) -> Tensor:
        """x (N, hidden) to (N, hidden); `caches` are those of all layers of the model."""
        chain_caches = [caches[index][0] for index in self.layer_indices]
        native = self.native_chain(tuple(cache.group for cache in chain_caches))
        angles = [rope.angles(batch) for rope in self.ropes]
        return native(x, angles, [cache.kv for cache in chain_caches], batch.attention)

    def native_chain(self, groups: tuple[int, ...]) -> NativeLayerChain:
        """The native chain whose layers read the block tables of these cache groups."""
        if groups not in self._native_chains:
            self._native_chains[groups] = NativeLayerChain(
                [(layer.attention.native, layer.mlp) for layer in self._layers],
                [self.ropes.index(layer.attention.rope) for layer in self._layers],
                groups,
            )
        return self._native_chains[groups]


def find_chains(layers: Sequence[FusedLayer | None]) -> dict[int, FusedLayerChain]:
    """The chains of a model by the index of their first layer; None: a layer is not fused."""
    chains: dict[int, FusedLayerChain] = {}
    current: list[FusedLayer] = []
    for index, layer in enumerate([*layers, None]):
        is_full = sum(each.weight_bytes for each in current) >= _CHAIN_BYTES
        if current and (layer is None or is_full):
            first = index - len(current)
            chains[first] = FusedLayerChain(first, current)
            current = []
        if layer is not None:
            current.append(layer)
    return chains

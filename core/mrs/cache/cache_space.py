"""The memory for the caches of many sequences of one model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch

from mrs.cache.block_pool import BlockPool
from mrs.cache.block_table import BlockTable
from mrs.cache.layer_cache import LayerCache, UnpagedLayer
from mrs.cache.paged_kv import PagedKVCache
from mrs.cache.sequence_cache import SequenceCache
from mrs.cache.shared_kv import SharedKVCache
from mrs.kernels.kv_codes import KVType
from mrs.kernels.paged import PagedKV
from mrs.plan.memory.cache_size import CacheSize

_NewLayer = Callable[[Sequence[BlockTable]], LayerCache]


@dataclass(frozen=True)
class CacheConfig:
    """What the caches are made for; `dtype` is that of keys and values."""

    size: CacheSize
    dtype: KVType

    @property
    def float_dtype(self) -> torch.dtype:
        """The type, for a layer that plans refuse to quantize."""
        assert isinstance(self.dtype, torch.dtype)
        return self.dtype


class CacheBuilder:
    """Collects which cache each layer of a model needs, layer by layer."""

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self._groups: dict[int | None, list[PagedKV]] = {}
        self._layers: list[_NewLayer] = []
        self._paged: dict[int, tuple[PagedKV, int]] = {}
        self._unpaged: list[int] = []

    @property
    def count(self) -> int:
        """The caches that a sequence has so far."""
        return len(self._layers)

    def add_paged(self, kv: PagedKV, window: int | None = None) -> int:
        """Add a layer whose keys and values are in blocks; returns its group of block tables."""
        group = self.add_blocks(kv, window)
        self._paged[len(self._layers)] = kv, group
        self._layers.append(lambda tables: PagedKVCache(kv, tables[group], group))
        return group

    def add_blocks(self, kv: PagedKV, window: int | None = None) -> int:
        """Add more keys and values of a layer, in the same blocks as its others."""
        window = self.config.size.window_of(window)
        self._groups.setdefault(window, []).append(kv)
        return list(self._groups).index(window)

    def add_shared(self, layer: int) -> PagedKV:
        """Add a layer that reads the keys and values of the earlier layer `layer`."""
        kv, group = self._paged[layer]
        self._layers.append(lambda tables: SharedKVCache(kv, group))
        return kv

    def add(self, new: Callable[[], UnpagedLayer]) -> None:
        """Add a layer that has a cache without blocks for each sequence."""
        self._unpaged.append(len(self._layers))
        self._layers.append(lambda tables: new())

    def build(self) -> CacheSpace:
        size = self.config.size
        pools = [
            BlockPool(
                layers,
                blocks=size.blocks(window),
                slots=size.rest_tokens(window) // size.block_tokens,
                block_tokens=size.block_tokens,
                window=window,
            )
            for window, layers in self._groups.items()
        ]
        return CacheSpace(pools, self._layers, self._unpaged)


class CacheSpace:
    """Makes the caches of all sequences; their paged layers share the blocks of `pools`."""

    def __init__(
        self, pools: Sequence[BlockPool], layers: Sequence[_NewLayer], unpaged: Sequence[int]
    ) -> None:
        self.pools = pools
        self._layers = layers
        self._unpaged = unpaged

    def reclaim_from(self, forget: Callable[[], bool]) -> None:
        """Before a pool gets more blocks, call `forget` until one is free or it returns False."""
        for pool in self.pools:
            pool.forget = forget

    def new(self) -> SequenceCache:
        """An empty cache of one sequence."""
        tables = [BlockTable(pool) for pool in self.pools]
        layers = [new(tables) for new in self._layers]
        return SequenceCache(tables, layers, [cast(UnpagedLayer, layers[n]) for n in self._unpaged])

    def allocated_bytes(self, caches: Sequence[SequenceCache]) -> Counter[torch.device]:
        """Bytes by device of all blocks, and of the layers of `caches` that have none."""
        sizes: Counter[torch.device] = Counter()
        for pool in self.pools:
            sizes.update(pool.allocated_bytes())
        for layer in (cache.layers[n] for cache in caches for n in self._unpaged):
            sizes[layer.device] += layer.nbytes
        return sizes

"""The memory for the caches of many sequences of one model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch

from mrs.cache.block_pool import BlockPool
from mrs.cache.block_table import BlockTable
from mrs.cache.layer import CachePart, LayerCache
from mrs.cache.paged_kv import PagedKVCache
from mrs.cache.sequence import SequenceCache
from mrs.kernels.paged import PagedKV
from mrs.sizes.blocks import BLOCK_TOKENS, blocks_of, window_blocks


class OwnLayer(LayerCache, CachePart, Protocol):
    """A layer's cache that keeps its tokens, or a state, by itself."""


_NewLayer = Callable[[Sequence[BlockTable]], LayerCache]


@dataclass(frozen=True)
class CacheConfig:
    """What the caches are made for: `sequences` of `tokens` each, prompts in chunks.

    `dtype` is that of keys and values.
    """

    tokens: int
    sequences: int
    chunk_tokens: int
    dtype: torch.dtype
    block_tokens: int = BLOCK_TOKENS

    def window_of(self, window: int | None) -> int | None:
        """None where a window hides none of the tokens that are planned for."""
        if window is None or window + self.chunk_tokens >= self.tokens:
            return None
        return window

    def blocks(self, window: int | None) -> int:
        """Blocks of a pool for layers with a window, or None."""
        if window is None:
            return self.sequences * blocks_of(self.tokens, self.block_tokens)
        return self.sequences * window_blocks(
            self.tokens, window, self.chunk_tokens, self.block_tokens
        )


class CacheBuilder:
    """Takes up how the layers of a model keep their tokens, one layer after another."""

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self._groups: dict[int | None, list[PagedKV]] = {}
        self._layers: list[_NewLayer] = []
        self._own: list[int] = []

    def add_paged(self, kv: PagedKV, window: int | None = None) -> None:
        """A layer whose keys and values lie in blocks."""
        window = self.config.window_of(window)
        self._groups.setdefault(window, []).append(kv)
        group = list(self._groups).index(window)
        self._layers.append(lambda tables: PagedKVCache(kv, tables[group], group))

    def add(self, new: Callable[[], OwnLayer]) -> None:
        """A layer that has a cache of its own for each sequence."""
        self._own.append(len(self._layers))
        self._layers.append(lambda tables: new())

    def build(self) -> CacheSpace:
        config = self.config
        pools = [
            BlockPool(
                layers,
                blocks=config.blocks(window),
                block_tokens=config.block_tokens,
                window=window,
            )
            for window, layers in self._groups.items()
        ]
        return CacheSpace(pools, self._layers, self._own)


class CacheSpace:
    """Gives every sequence its cache; those of the layers that are paged share `pools`."""

    def __init__(
        self, pools: Sequence[BlockPool], layers: Sequence[_NewLayer], own: Sequence[int]
    ) -> None:
        self.pools = pools
        self._layers = layers
        self._own = own

    def new(self) -> SequenceCache:
        """An empty cache of one sequence."""
        tables = [BlockTable(pool) for pool in self.pools]
        layers = [new(tables) for new in self._layers]
        return SequenceCache(tables, layers, [cast(OwnLayer, layers[n]) for n in self._own])

    def allocated_bytes(self, cache: SequenceCache) -> Counter[torch.device]:
        """Bytes by device of all blocks, and of what `cache` keeps beside them."""
        sizes: Counter[torch.device] = Counter()
        for pool in self.pools:
            for device, size_bytes in pool.block_bytes().items():
                sizes[device] += pool.count * size_bytes
        for layer in (cache.layers[n] for n in self._own):
            sizes[layer.device] += layer.nbytes
        return sizes

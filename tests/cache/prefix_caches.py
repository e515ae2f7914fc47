"""Caches whose numbers say which token stands where, for tests of what is stored of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import torch

from mrs.cache.cache_space import CacheBuilder, CacheConfig, CacheSpace
from mrs.cache.layer_cache import LayerSlice, TensorShape
from mrs.cache.paged_kv import PagedKVCache
from mrs.cache.prefix.manager import PrefixCacheManager
from mrs.cache.sequence_cache import SequenceCache
from mrs.kernels.paged import PagedKV
from mrs.plan.memory.cache_size import CacheSize

CPU = torch.device("cpu")
WINDOW, CHUNK, BLOCK = 4, 2, 4
#: Of one token in one layer of keys and values.
TOKEN_BYTES = 2 * (3 + 1) * 4


class RunningSum:
    """A recurrent state: the sum of all tokens, each times its position's weight."""

    is_state = True
    keeps_all = False

    def __init__(self) -> None:
        self.length = 0
        self.device = CPU
        self.state = torch.zeros(3)

    @property
    def nbytes(self) -> int:
        return self.state.nbytes

    def add(self, token: int) -> None:
        self.length += 1
        self.state += token * self.length

    def advance(self, tokens: int) -> None:
        """`add` has counted them."""

    def can_rewind_to(self, length: int) -> bool:
        return length == self.length

    def rewind(self, length: int) -> None:
        if not self.can_rewind_to(length):
            raise ValueError("a state cannot be rewound")

    def export(self, start: int, end: int) -> LayerSlice | None:
        if end != self.length:
            return None
        return LayerSlice(end - 1, {"state": self.state.clone()})

    def restore(self, length: int, slices: Sequence[LayerSlice | None]) -> None:
        self.length = length
        self.state = slices[-1].tensors["state"].clone()

    share, adopt = export, restore

    @property
    def rules(self) -> type[RunningSum]:
        return type(self)

    @staticmethod
    def serves(start: int, end: int, first: int | None, length: int) -> bool:
        return end < length or (end == length and first is not None)

    def fits(self, first: int, end: int, shapes: Mapping[str, TensorShape]) -> bool:
        return shapes == {"state": TensorShape(torch.float32, (3,))}


def paged(builder: CacheBuilder, window: int | None = None) -> None:
    kv = PagedKV(2, 3, 1, block_tokens=BLOCK, dtype=torch.float32, device=CPU)
    builder.add_paged(kv, window)


#: Layers with all tokens, with a window, and with a state.
_LAYERS = {"dense": "aa", "window": "waw", "hybrid": "asw"}


@cache
def space(kind: str) -> CacheSpace:
    builder = CacheBuilder(CacheConfig(CacheSize(1000, 1, CHUNK, BLOCK), torch.float32))
    for layer in _LAYERS[kind]:
        if layer == "s":
            builder.add(RunningSum)
        else:
            paged(builder, WINDOW if layer == "w" else None)
    return builder.build()


KINDS = {kind: space(kind).new for kind in _LAYERS}


def feed(cache: SequenceCache, tokens: Sequence[int]) -> SequenceCache:
    """Let every layer take up `tokens`, one after another."""
    for token in tokens:
        cache.reserve(1)
        for layer in cache.layers:
            if isinstance(layer, RunningSum):
                layer.add(token)
            else:
                assert isinstance(layer, PagedKVCache)
                table = cache.tables[layer.group]
                k, v = torch.full((1, 2, 3), float(token)), torch.full((1, 2, 1), float(-token))
                slots = torch.tensor(table.slots(cache.length, cache.length + 1))
                layer.kv.write(slots, (k, v))
        cache.advance(1)
    return cache


def contents(cache: SequenceCache) -> list[list[float]]:
    """What each layer shows to a next token, 99 (which it is then fed)."""
    feed(cache, [99])
    shown = []
    for layer in cache.layers:
        if isinstance(layer, RunningSum):
            shown.append(layer.state.tolist())
            continue
        window = cache.tables[layer.group].pool.window
        found = layer.export(max(0, cache.length - (window or cache.length)), cache.length)
        k, v = found.tensors["0"], found.tensors["1"]
        assert torch.equal(k[..., :1], -v)
        shown.append(k[0, :, 0].tolist())
    return shown


def manager(kind: str = "dense", n: int = 4, budget: int | None = None) -> PrefixCacheManager:
    budgets = None if budget is None else {CPU: budget}
    return PrefixCacheManager(n, new_cache=KINDS[kind], budget_bytes=budgets)


def store(
    prefixes: PrefixCacheManager, kind: str, tokens: Sequence[int], epoch: object = None
) -> None:
    cache = feed(KINDS[kind](), tokens)
    prefixes.add_sequence(tokens, cache, epoch=epoch)
    cache.release()


def evict_all(prefixes: PrefixCacheManager) -> None:
    while prefixes._store.drop_oldest():
        pass


def found(
    prefixes: PrefixCacheManager, kind: str, prompt: Sequence[int], epoch: object = None
) -> int:
    """The length of the hit, whose contents are compared with a fresh cache's; 0 for none."""
    hit = prefixes.search_for_matching_cache(prompt, epoch=epoch)
    if hit is None:
        return 0
    length = hit.length
    fresh = feed(KINDS[kind](), prompt[:length])
    assert contents(hit) == contents(fresh)
    hit.release()
    fresh.release()
    return length

"""Caches whose numbers say which token stands where, for tests of what is stored of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from mrs.cache.growing import GrowingCache
from mrs.cache.layer import LayerCache
from mrs.cache.prefix import PrefixCacheManager
from mrs.cache.rotating import RotatingCache
from mrs.cache.sequence import SequenceCache
from mrs.cache.shared import SharedCache

CPU = torch.device("cpu")
WINDOW, CHUNK = 4, 2


class RunningSum:
    """A recurrent state: the sum of all tokens, each times its position's weight."""

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

    def can_rewind_to(self, length: int) -> bool:
        return length == self.length

    def rewind(self, length: int) -> None:
        if not self.can_rewind_to(length):
            raise ValueError("a state cannot be rewound")

    def snapshot(self) -> tuple[torch.Tensor, ...]:
        return (self.state.clone(),)

    def restore(self, length: int, snapshot: tuple[torch.Tensor, ...]) -> None:
        self.length = length
        self.state = snapshot[0].clone()


def growing() -> LayerCache:
    return GrowingCache(2, 3, 1, capacity=8, dtype=torch.float32, device=CPU)


def rotating() -> LayerCache:
    return RotatingCache(2, 3, 1, window=WINDOW, chunk=CHUNK, dtype=torch.float32, device=CPU)


def sharing() -> SequenceCache:
    """The last layer sees what the one before it does."""
    source = rotating()
    return SequenceCache([growing(), source, SharedCache(source)])


KINDS: dict[str, Callable[[], SequenceCache]] = {
    "dense": lambda: SequenceCache([growing(), growing()]),
    "window": lambda: SequenceCache([rotating(), growing(), rotating()]),
    "hybrid": lambda: SequenceCache([growing(), RunningSum(), rotating()]),
    "shared": sharing,
}


def feed(cache: SequenceCache, tokens: Sequence[int]) -> SequenceCache:
    """Let every layer see `tokens`, one after another."""
    for token in tokens:
        for layer in cache.layers:
            if isinstance(layer, RunningSum):
                layer.add(token)
            elif not isinstance(layer, SharedCache):
                layer.append(
                    torch.full((2, 1, 3), float(token)), torch.full((2, 1, 1), float(-token))
                )
    return cache


def seen(cache: SequenceCache) -> list[list[float]]:
    """What each layer shows to a next token, 99 (which it is then fed)."""
    shown = []
    for layer in cache.layers:
        if isinstance(layer, RunningSum):
            layer.add(99)
            shown.append(layer.state.tolist())
            continue
        if isinstance(layer, SharedCache):
            k, v = layer.seen(1)
        else:
            k, v = layer.append(torch.full((2, 1, 3), 99.0), torch.full((2, 1, 1), -99.0))
        assert torch.equal(k[..., :1], -v)
        shown.append(k[0, :, 0].tolist())
    return shown


def manager(
    kind: str = "dense", n: int = 4, budget: int | None = None, **options: bool
) -> PrefixCacheManager:
    budgets = None if budget is None else {CPU: budget}
    return PrefixCacheManager(n, new_cache=KINDS[kind], budget_bytes=budgets, **options)


def store(prefixes: PrefixCacheManager, kind: str, tokens: Sequence[int], **media: object) -> None:
    prefixes.add_sequence(tokens, feed(KINDS[kind](), tokens), **media)


def found(prefixes: PrefixCacheManager, kind: str, prompt: Sequence[int], **media: object) -> int:
    """The offset of the hit, whose cache is compared with one that saw the tokens; 0 for none."""
    hit = prefixes.search_for_matching_cache(prompt, **media)
    if hit is None:
        return 0
    assert hit.normal.length == hit.offset == len(prompt) - len(hit.toks)
    assert hit.toks == list(prompt[hit.offset :])
    assert seen(hit.normal) == seen(feed(KINDS[kind](), prompt[: hit.offset]))
    prefixes.forget(hit.normal)
    return hit.offset

"""Which sequences the prefix cache drops, and that their blocks are free then."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from prefix_caches import (
    BLOCK,
    KINDS,
    TOKEN_BYTES,
    evict_all,
    feed,
    found,
    manager,
    space,
    store,
)

from mrs.cache.cache_space import CacheBuilder, CacheConfig
from mrs.cache.prefix.manager import PrefixCacheManager
from mrs.cache.prefix.store import PrefixStore
from mrs.kernels.paged import PagedKV
from mrs.plan.memory.cache_size import CacheSize

KIND_NAMES = list(KINDS)


def test_a_hit_makes_a_sequence_recent() -> None:
    prefixes = manager(n=9, budget=2 * 4 * 2 * TOKEN_BYTES)  # two sequences of one block
    store(prefixes, "dense", [1, 1, 1])
    store(prefixes, "dense", [2, 2, 2])
    assert found(prefixes, "dense", [1, 1, 1, 9]) == 3
    store(prefixes, "dense", [3, 3, 3])
    prefixes.evict_caches()
    assert found(prefixes, "dense", [2, 2, 2, 9]) == 0
    assert found(prefixes, "dense", [1, 1, 1, 9]) == 3


def test_past_the_byte_budget_the_oldest_are_dropped() -> None:
    prefixes = manager(n=2, budget=3 * 4 * 2 * TOKEN_BYTES)  # three sequences of four tokens
    for first in range(8):
        store(prefixes, "dense", [first, 1, 2, 3])
        prefixes.evict_caches()
        assert prefixes.nbytes <= 3 * 4 * 2 * TOKEN_BYTES
    assert [found(prefixes, "dense", [f, 1, 2, 3, 4]) for f in range(8)] == [0] * 5 + [4] * 3


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KIND_NAMES)
def test_bytes_are_counted_only_near_the_limit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting takes time in proportion to all that is stored."""
    counts: list[int] = []
    own_bytes = PrefixStore.own_bytes

    def counted(stored: PrefixStore, **options: bool) -> Counter[torch.device]:
        before = stored.most_bytes
        found = own_bytes(stored, **options)
        assert found <= before
        counts.append(len(stored.sequences))
        return found

    monkeypatch.setattr(PrefixStore, "own_bytes", counted)
    budget = 100 * BLOCK * 2 * TOKEN_BYTES
    prefixes = manager(kind, budget=budget)
    running = feed(KINDS[kind](), [0, 1, 2])
    for first in range(200):
        store(prefixes, kind, [first % 5, 1 + first, 1, 2])
        prefixes.add_sequence([0, 1, 2], running)
        prefixes.evict_caches()
    running.release()
    prefixes.evict_caches()
    assert prefixes.nbytes <= budget
    assert counts[0] >= 10


def test_a_dropped_sequence_leaves_what_others_share_with_it() -> None:
    prefixes = manager(n=2, budget=5 * BLOCK * 2 * TOKEN_BYTES)
    first = [1, 2, 3, 4, 5, 6, 7, 8]
    store(prefixes, "dense", first)
    for other in ([7, 8, 9, 1], [9, 9, 9, 9]):
        hit = prefixes.search_for_matching_cache([1, 2, 3, 4, *other])
        assert hit is not None
        prefixes.add_sequence([1, 2, 3, 4, *other], feed(hit, other))
        hit.release()
    store(prefixes, "dense", [5, 5, 5, 5, 5])
    prefixes.evict_caches()
    assert len(prefixes) == 3
    assert found(prefixes, "dense", [*first, 9]) == 4
    assert found(prefixes, "dense", [1, 2, 3, 4, 7, 8, 9, 1, 4]) == 8


@pytest.mark.parametrize(
    ("device", "n", "left"), [("cpu", 2, 90), ("meta", 2, 2), ("meta", 79, 79)]
)
def test_no_more_than_n_stay_on_an_accelerator(device: str, n: int, left: int) -> None:
    builder = CacheBuilder(CacheConfig(CacheSize(100, 1, 4, BLOCK), torch.float32))
    options = {"dtype": torch.float32, "device": torch.device(device)}
    builder.add_paged(PagedKV(2, 3, 1, block_tokens=BLOCK, **options))
    own = builder.build()
    prefixes = PrefixCacheManager(n, new_cache=own.new)
    for first in range(90):
        cache = feed(own.new(), [first, 1, 2])
        prefixes.add_sequence([first, 1, 2], cache)
        cache.release()
    prefixes.evict_caches()
    assert len(prefixes) == left
    assert own.pools[0].used == left


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_evicting_all_forgets_everything(kind: str) -> None:
    prefixes = manager(kind)
    store(prefixes, kind, [1, 2])
    store(prefixes, kind, [3, 4])
    evict_all(prefixes)
    assert len(prefixes) == prefixes.nbytes == 0
    assert found(prefixes, kind, [1, 2, 3]) == 0


def test_what_a_running_sequence_holds_is_not_counted() -> None:
    prefixes = manager()
    cache = feed(KINDS["dense"](), range(5))
    prefixes.add_sequence(range(5), cache)
    assert prefixes.nbytes == 0
    cache.release()
    assert prefixes.nbytes == 2 * BLOCK * 2 * TOKEN_BYTES
    assert found(prefixes, "dense", [0, 1, 2, 3, 4, 5]) == 5


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_blocks_of_forgotten_sequences_are_free(kind: str) -> None:
    before = [pool.used for pool in space(kind).pools]
    prefixes = manager(kind)
    for first in range(5):
        store(prefixes, kind, [1, 2, 3, 4, 5, first, 1, 2, 3, 4, 5, 6, 7, 8, 9])
        assert found(prefixes, kind, [1, 2, 3, 4, 5, first, 9]) in (0, 5, 6)
    assert [pool.used for pool in space(kind).pools] != before
    evict_all(prefixes)
    assert [pool.used for pool in space(kind).pools] == before

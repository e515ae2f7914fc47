"""Sequences share the blocks of a common beginning, and copy what they change."""

from __future__ import annotations

import pytest
from prefix_caches import (
    BLOCK,
    KINDS,
    TOKEN_BYTES,
    contents,
    feed,
    found,
    manager,
    space,
    store,
)

KIND_NAMES = list(KINDS)


def used_blocks() -> int:
    (pool,) = space("dense").pools
    return pool.used


def test_going_on_from_the_end_copies_nothing() -> None:
    """Not even the last block, to which nobody has added since; who comes second copies it."""
    prefixes = manager()
    store(prefixes, "dense", [1, 2, 3])
    before = used_blocks()
    first = prefixes.search_for_matching_cache([1, 2, 3, 4])
    second = prefixes.search_for_matching_cache([1, 2, 3, 5])
    assert first is not None
    assert second is not None
    assert contents(first) == contents(feed(KINDS["dense"](), [1, 2, 3]))
    before += 1  # that of the fresh one
    assert used_blocks() == before
    assert contents(second) == contents(feed(KINDS["dense"](), [1, 2, 3]))
    assert used_blocks() == before + 2  # and that of the second
    assert found(prefixes, "dense", [1, 2, 3, 6]) == 3


@pytest.mark.parametrize("kept", [3, 5, 8, 13, 15])
def test_a_hit_shares_all_blocks_but_the_last_partial_one(kept: int) -> None:
    prefixes = manager()
    tokens = list(range(1, 21))
    store(prefixes, "dense", tokens)
    before = used_blocks()
    hit = prefixes.search_for_matching_cache([*tokens[:kept], 50])
    assert hit is not None
    assert used_blocks() == before
    feed(hit, [50])
    assert used_blocks() == before + 1
    feed(hit, [51, 52, 53, 54, 55, 56])
    assert found(prefixes, "dense", [*tokens, 60]) == 20
    hit.release()
    assert used_blocks() == before


def test_sixteen_sequences_hold_a_common_prefix_once() -> None:
    """Measured in bytes of blocks that are in use."""
    prefixes, (pool,) = manager(), space("dense").pools
    prefix = [number % 50 for number in range(2000)]
    before = pool.used
    store(prefixes, "dense", prefix)
    running = []
    for number in range(16):
        hit = prefixes.search_for_matching_cache([*prefix, 100 + number])
        assert hit is not None
        running.append(feed(hit, [100 + number]))
    own = len(running) * BLOCK * 2 * TOKEN_BYTES
    in_use = (pool.used - before) * sum(pool.block_bytes().values())
    assert in_use == 2000 * 2 * TOKEN_BYTES + own
    assert len({id(cache) for cache in running}) == 16
    for number, cache in enumerate(running):
        assert cache.length == 2001
        assert contents(cache)[0][-3:] == [49.0, 100.0 + number, 99.0]
        cache.release()


def test_a_full_window_that_is_rewound_leaves_what_is_stored() -> None:
    prefixes = manager("window")
    tokens = [1, 2, 3, 4, 5, 6]
    store(prefixes, "window", tokens)
    hit = prefixes.search_for_matching_cache([1, 2, 3, 4, 5, 70])
    assert hit is not None
    feed(hit, [70, 71])
    assert found(prefixes, "window", [*tokens, 7]) == 6


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_what_is_stored_stays_while_its_cache_goes_on(kind: str) -> None:
    prefixes = manager(kind)
    cache = feed(KINDS[kind](), [1, 2, 3, 4, 5, 6, 7])
    prefixes.add_sequence([1, 2, 3, 4, 5, 6, 7], cache)
    feed(cache, range(30, 60))
    assert found(prefixes, kind, [1, 2, 3, 4, 5, 6, 7, 8]) == 7


def test_a_common_beginning_takes_memory_once() -> None:
    prefixes = manager(n=100)
    system = list(range(100, 200))
    for first in range(20):
        hit = prefixes.search_for_matching_cache([*system, first, 20])
        cache = feed(hit or KINDS["dense"](), [] if hit else system)
        prefixes.add_sequence(system, cache)
        prefixes.add_sequence([*system, first, 20, 21, 22], feed(cache, [first, 20, 21, 22]))
        cache.release()
    assert prefixes.nbytes == (len(system) + 20 * 4) * 2 * TOKEN_BYTES
    for first in range(20):
        assert found(prefixes, "dense", [*system, first, 20, 99]) == len(system) + 2

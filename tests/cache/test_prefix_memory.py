"""What the prefix cache keeps alive: blocks of the pools, counted by reference."""

from __future__ import annotations

import random

import pytest
from prefix_caches import KINDS, evict_all, feed, manager, space

BUDGET_BYTES = 3000


def used_bytes(kind: str) -> int:
    """Bytes of all blocks that something refers to."""
    return sum(pool.used * sum(pool.block_bytes().values()) for pool in space(kind).pools)


@pytest.mark.parametrize("kind", KINDS)
def test_a_dropped_sequence_frees_its_blocks(kind: str) -> None:
    """Also where another sequence shares its beginning."""
    before = used_bytes(kind)
    prefixes = manager(kind, budget=0)
    for tokens in ([1, 2, 3, 4, 5], [1, 2, 3, 8, 9], [7] * 20):
        cache = feed(KINDS[kind](), tokens)
        prefixes.add_sequence(tokens, cache)
        cache.release()
    assert used_bytes(kind) > before
    prefixes.evict_caches()
    assert used_bytes(kind) == before


@pytest.mark.parametrize("kind", KINDS)
def test_no_more_is_alive_than_the_budget_and_what_runs(kind: str) -> None:
    before = used_bytes(kind)
    prefixes = manager(kind, n=6, budget=BUDGET_BYTES)
    draw = random.Random(kind)
    for _ in range(80):
        tokens = draw.choices([1, 2], k=draw.randint(1, 14))
        hit = prefixes.search_for_matching_cache(tokens, leave_last=True)
        cache = hit or KINDS[kind]()
        feed(cache, tokens[cache.length :])
        if draw.random() < 0.8:
            prefixes.add_sequence(tokens, cache)
        cache.release()
        prefixes.evict_caches()
        assert used_bytes(kind) - before <= BUDGET_BYTES
    evict_all(prefixes)
    assert used_bytes(kind) == before

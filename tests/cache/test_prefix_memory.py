"""What the prefix cache keeps alive, measured from outside: by tensors that Python still has."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator

import pytest
import torch
from prefix_caches import KINDS, feed, manager

BUDGET_BYTES = 600


@pytest.fixture(scope="module", autouse=True)
def only_new_objects() -> Iterator[None]:
    """Lets `gc.get_objects` give only what tests make, and nothing be collected but by counts."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def live_bytes() -> int:
    """Bytes of all storages, each once, that tensors of this test refer to."""
    tensors = [each for each in gc.get_objects() if isinstance(each, torch.Tensor)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_dropped_cache_is_not_kept_by_a_beginning_that_others_share(kind: str) -> None:
    prefixes = manager(kind, budget=BUDGET_BYTES)
    first, second, third = [1, 2, 3, 4, 5], [1, 2, 3, 8, 9], [7] * 20
    prefixes.add_sequence(first, feed(KINDS[kind](), first))
    cache = feed(KINDS[kind](), second)
    prefixes.add_sequence(second, cache)
    dropped = weakref.ref(cache)
    large = feed(KINDS[kind](), third)
    prefixes.add_sequence(third, large)
    prefixes.forget(large)  # more than the budget allows
    del cache, large
    # The first is used last: the others go, though its beginning is a view of the second's cache.
    assert prefixes.search_for_matching_cache([*first, 6]) is not None
    prefixes.evict_caches()
    assert len(prefixes) == 1
    assert dropped() is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("whole_caches", [0, 2])
def test_no_more_is_alive_than_the_budget_and_the_whole_caches(
    kind: str, whole_caches: int
) -> None:
    gc.collect()  # what other tests left
    prefixes = manager(kind, n=6, budget=BUDGET_BYTES)
    largest = feed(KINDS[kind](), range(14)).nbytes
    draw = random.Random(whole_caches)
    for _ in range(80):
        tokens = draw.choices([1, 2], k=draw.randint(1, 14))
        hit = prefixes.search_for_matching_cache(tokens, leave_last=True)
        cache = hit.normal if hit else KINDS[kind]()
        feed(cache, tokens[cache.length :])
        if draw.random() < 0.3:
            prefixes.add_sequence(tokens, cache, live=False)
        if draw.random() < 0.2:
            prefixes.forget(cache)
        else:
            prefixes.add_sequence(tokens, cache)
        del hit, cache
        prefixes.limit_live(whole_caches)
        prefixes.evict_caches()
        assert live_bytes() <= BUDGET_BYTES + whole_caches * largest
    prefixes.evict_all_caches()
    assert live_bytes() == 0

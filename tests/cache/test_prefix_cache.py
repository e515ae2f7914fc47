"""The prefix cache finds the longest beginning that can be had, and gives it back unchanged."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from prefix_caches import (
    BLOCK,
    KINDS,
    TOKEN_BYTES,
    WINDOW,
    contents,
    evict_all,
    feed,
    found,
    manager,
    space,
    store,
)

from mrs.cache.cache_space import CacheBuilder, CacheConfig
from mrs.cache.prefix.manager import PrefixCacheManager
from mrs.engine.sequence import Sequence
from mrs.kernels.paged import PagedKV
from mrs.sizes.blocks import CacheSize

KIND_NAMES = list(KINDS)


def test_a_rolled_over_window_leaves_the_hit_to_a_shorter_sequence() -> None:
    prefixes = manager("window")
    store(prefixes, "window", list(range(1, 17)))
    store(prefixes, "window", [1, 2, 3, 4, 5, 9])
    assert found(prefixes, "window", [1, 2, 3, 4, 5, 6, 7, 99]) == 5


def test_a_rolled_over_window_serves_what_goes_on_from_its_end() -> None:
    prefixes = manager("window")
    store(prefixes, "window", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    assert found(prefixes, "window", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]) == 10


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_the_longest_of_several_beginnings_wins(kind: str) -> None:
    prefixes = manager(kind)
    for tokens in ([1, 2], [1, 2, 3, 4], [1, 2, 3], [7, 8, 9]):
        store(prefixes, kind, tokens)
    assert found(prefixes, kind, [1, 2, 3, 4, 5]) == 4


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_nothing_in_common_is_no_hit(kind: str) -> None:
    prefixes = manager(kind)
    assert found(prefixes, kind, [1, 2]) == 0
    store(prefixes, kind, [1, 2, 3])
    assert found(prefixes, kind, [2, 3]) == 0
    assert found(prefixes, kind, []) == 0


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_a_prompt_that_is_stored_whole_is_no_hit(kind: str) -> None:
    prefixes = manager(kind)
    store(prefixes, kind, [1, 2, 3])
    assert prefixes.search_for_matching_cache([1, 2, 3]) is None


def test_a_prompt_that_is_stored_whole_can_leave_its_last_token() -> None:
    prefixes = manager()
    store(prefixes, "dense", [1, 2, 3, 4, 5])
    hit = prefixes.search_for_matching_cache([1, 2, 3, 4, 5], leave_last=True)
    assert hit is not None
    assert hit.length == 4


def test_all_that_is_shared_serves_where_everything_is_remembered() -> None:
    prefixes = manager()
    store(prefixes, "dense", range(20))
    for length in (1, 7, 19):
        assert found(prefixes, "dense", [*range(length), 77, 78]) == length


def test_a_state_serves_only_the_token_after_it() -> None:
    prefixes = manager("hybrid")
    store(prefixes, "hybrid", [1, 2, 3])
    store(prefixes, "hybrid", [1, 2, 3, 4, 5])
    assert found(prefixes, "hybrid", [1, 2, 3, 4, 9]) == 3
    store(prefixes, "hybrid", [1, 2, 3, 4, 5])
    assert found(prefixes, "hybrid", [1, 2, 3, 4, 5, 9]) == 5


def test_a_window_that_did_not_roll_over_can_be_rewound() -> None:
    prefixes = manager("window")
    store(prefixes, "window", [1, 2, 3, 4, 5])
    assert found(prefixes, "window", [1, 2, 3, 9]) == 3


def keys_of(*digests: int) -> list[int]:
    """The prefix keys of a text with as many images, whose tokens are the same for all."""
    ids, images = [1, 2], []
    for digest in digests:
        images.append(SimpleNamespace(positions=range(len(ids), len(ids) + 3), key=-1 - digest))
        ids += [50, 50, 50, 3]
    return Sequence(ids, len(ids), 100, sampler=None, images=tuple(images)).prefix_keys


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_other_images_are_passed_over(kind: str) -> None:
    prefixes = manager(kind)
    store(prefixes, kind, keys_of(11, 12))
    store(prefixes, kind, keys_of(11))
    assert found(prefixes, kind, keys_of(11, 99)) == 6
    assert found(prefixes, kind, keys_of(11, 12, 13)) == 10
    assert found(prefixes, kind, keys_of(99)) == (0 if kind == "hybrid" else 2)
    assert found(prefixes, kind, keys_of()) == 0


def salted(ids: list[int], salt: int) -> list[int]:
    return Sequence(ids, len(ids), 100, sampler=None, prefix_salt=salt).prefix_keys


def test_other_salts_share_nothing() -> None:
    prefixes, ids = manager(), [1, 2, 3, 4, 5]
    store(prefixes, "dense", salted(ids, 7 << 40))
    assert found(prefixes, "dense", salted([*ids, 6], 7 << 40)) == 5
    for other in (0, 1, 7 << 40 | 1, 2**63 - 1):
        assert found(prefixes, "dense", salted([*ids, 6], other)) == 0
    assert min(salted(ids, 2**63 - 1)) >= -(2**63), "keys have 64 bits in a file"


def test_epochs_share_nothing() -> None:
    prefixes = manager()
    store(prefixes, "dense", [1, 2, 3], epoch="short")
    assert found(prefixes, "dense", [1, 2, 3, 4], epoch="long") == 0
    assert found(prefixes, "dense", [1, 2, 3, 4], epoch="short") == 3


def test_zero_turns_it_off() -> None:
    prefixes = manager(n=0)
    store(prefixes, "dense", [1, 2, 3])
    assert len(prefixes) == 0
    assert prefixes.search_for_matching_cache([1, 2, 3, 4]) is None
    prefixes.evict_caches()


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


def test_an_extension_takes_the_place_of_what_it_extends() -> None:
    prefixes = manager()
    for length in (3, 5, 9):
        store(prefixes, "dense", range(length))
    assert len(prefixes) == 1
    store(prefixes, "dense", range(9))
    assert len(prefixes) == 1


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


@pytest.mark.parametrize(("device", "left"), [("cpu", 5), ("meta", 2)])
def test_no_more_than_n_stay_on_an_accelerator(device: str, left: int) -> None:
    builder = CacheBuilder(CacheConfig(CacheSize(100, 1, 4, BLOCK), torch.float32))
    options = {"dtype": torch.float32, "device": torch.device(device)}
    builder.add_paged(PagedKV(2, 3, 1, block_tokens=BLOCK, **options))
    own = builder.build()
    prefixes = PrefixCacheManager(2, new_cache=own.new)
    for first in range(5):
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


def test_where_sequences_parted_is_known_for_the_next() -> None:
    prefixes = manager("hybrid")
    store(prefixes, "hybrid", [1, 2, 3, 4, 5])
    assert found(prefixes, "hybrid", [1, 2, 3, 9]) == 0
    assert prefixes.shared_tokens([1, 2, 3, 9]) == 3
    store(prefixes, "hybrid", [1, 2, 3])
    assert found(prefixes, "hybrid", [1, 2, 3, 9]) == 3


@pytest.mark.parametrize("kind", ["window", "hybrid"])
def test_ends_of_earlier_turns_serve_again_within_bounds(kind: str) -> None:
    prefixes = manager(kind, n=1)
    tokens = list(range(1, 2 * 5 * 12 + 1))
    for length in range(12, len(tokens) + 1, 12):
        store(prefixes, kind, tokens[:length])
    assert [found(prefixes, kind, [*tokens[:n], 500]) for n in (12, 24, 96)] == [0, 24, 96]


def test_a_cache_of_other_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="a cache of 2 tokens for 3"):
        manager().add_sequence([1, 2, 3], feed(KINDS["dense"](), [1, 2]))


def test_a_look_up_costs_the_same_among_many_sequences() -> None:
    """Counted in comparisons of tokens, which a look-up cannot do without."""

    class Counting(list[int]):
        reads = 0

        def __getitem__(self, index):  # type: ignore[no-untyped-def]
            Counting.reads += 1
            return super().__getitem__(index)

    def reads(stored: int) -> int:
        prefixes = manager(n=10_000)
        for number in range(stored):
            store(prefixes, "dense", [1, 2, number + 10, 4])
        Counting.reads = 0
        assert found(prefixes, "dense", Counting([1, 2, 12, 4, 5])) == 4
        return Counting.reads

    assert reads(200) == reads(5)


@pytest.mark.parametrize("kind", KIND_NAMES)
@pytest.mark.parametrize("seed", range(6))
def test_random_conversations_get_back_what_they_would_compute(kind: str, seed: int) -> None:
    """Branching, sharing, going on, images, evictions: a hit is always what its tokens make it."""
    chance = random.Random(seed)
    prefixes = manager(kind, n=chance.choice([1, 2, 4]), budget=chance.choice([None, 8000, 24000]))
    histories: list[list[int]] = [[]]
    hits = 0
    for _ in range(120):
        past = chance.choice(histories)
        past = past[: chance.randint(0, len(past))] if chance.random() < 0.4 else past
        image = [-chance.randint(1, 3)] * 3 if chance.random() < 0.15 else []
        tokens = [*past, *image, *(chance.randint(1, 4) for _ in range(chance.randint(1, 9)))]
        hit = prefixes.search_for_matching_cache(tokens, leave_last=chance.random() < 0.5)
        cache = hit or KINDS[kind]()
        feed(cache, tokens[cache.length :])
        hits += hit is not None
        prefixes.add_sequence(tokens, cache)
        if chance.random() < 0.3:
            assert contents(cache) == contents(feed(KINDS[kind](), tokens))
        cache.release()
        if chance.random() < 0.5:
            prefixes.evict_caches()
        histories.append(tokens)
        found(prefixes, kind, [*chance.choice(histories), 9])
    assert hits > 10
    evict_all(prefixes)
    assert prefixes.nbytes == 0


def test_the_window_of_the_tests_moves_on() -> None:
    cache = feed(KINDS["window"](), range(12))
    assert not cache.can_rewind_to(12 - WINDOW)

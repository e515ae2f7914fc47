"""The prefix cache finds the longest beginning that can be had, and gives it back unchanged."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from prefix_caches import (
    KINDS,
    WINDOW,
    contents,
    evict_all,
    feed,
    found,
    manager,
    store,
)

from mrs.engine.sequence import Sequence
from support.suites import first

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


def test_an_extension_takes_the_place_of_what_it_extends() -> None:
    prefixes = manager()
    for length in (3, 5, 9):
        store(prefixes, "dense", range(length))
    assert len(prefixes) == 1
    store(prefixes, "dense", range(9))
    assert len(prefixes) == 1


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


@pytest.mark.few("0-dense", "2-hybrid")
@pytest.mark.values
@pytest.mark.parametrize("kind", KIND_NAMES)
@pytest.mark.parametrize("seed", first(3, range(6)))
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

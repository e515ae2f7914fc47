"""Caches give back exactly the tokens that a list of all tokens would."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from mrs.cache.growing import GrowingCache
from mrs.cache.layer import LayerCache, StateCache, TokenCache
from mrs.cache.rotating import RotatingCache
from mrs.cache.sequence import SequenceCache
from mrs.cache.shared import SharedCache

CPU = torch.device("cpu")
WINDOW, CHUNK = 5, 3


def growing(capacity: int = 4) -> GrowingCache:
    return GrowingCache(2, 3, 1, capacity=capacity, dtype=torch.float32, device=CPU)


def rotating() -> RotatingCache:
    return RotatingCache(2, 3, 1, window=WINDOW, chunk=CHUNK, dtype=torch.float32, device=CPU)


def tokens(first: int, count: int) -> tuple[Tensor, Tensor]:
    """Keys and values whose numbers are the tokens' positions."""
    positions = torch.arange(first, first + count, dtype=torch.float32)[None, :, None]
    return positions.expand(2, count, 3), -positions.expand(2, count, 1)


def positions_seen(k: Tensor, v: Tensor) -> list[int]:
    assert torch.equal(k[..., :1], -v)
    assert torch.equal(k[0], k[1])
    return [int(p) for p in k[0, :, 0]]


def test_growing_keeps_everything_across_growth() -> None:
    cache, seen = growing(), 0
    for count in (3, 1, 1, 9, 2):
        k, v = cache.append(*tokens(seen, count))
        seen += count
        assert positions_seen(k, v) == list(range(seen))
    assert cache.length == seen
    assert cache.capacity >= seen
    assert cache.nbytes == 2 * cache.capacity * (3 + 1) * 4


def test_growing_doubles() -> None:
    cache = growing(capacity=4)
    cache.append(*tokens(0, 4))
    cache.append(*tokens(4, 1))
    assert cache.capacity == 8


def test_growing_rewinds_and_goes_on() -> None:
    cache = growing()
    cache.append(*tokens(0, 6))
    cache.rewind(2)
    k, v = cache.append(*tokens(2, 1))
    assert positions_seen(k, v) == [0, 1, 2]


def test_rewinding_forward_is_refused() -> None:
    cache = growing()
    cache.append(*tokens(0, 2))
    with pytest.raises(ValueError, match="cannot rewind 2 tokens to 3"):
        cache.rewind(3)


@pytest.mark.parametrize("seed", range(20))
def test_rotating_shows_each_chunk_its_window(seed: int) -> None:
    chooser, cache, seen = random.Random(seed), rotating(), 0
    bytes_at_start = cache.nbytes
    for _ in range(30):
        count = chooser.randint(1, CHUNK)
        k, v = cache.append(*tokens(seen, count))
        first_visible = max(0, seen - (WINDOW - 1))
        seen += count
        assert positions_seen(k, v) == list(range(first_visible, seen))
    assert cache.length == seen
    assert cache.nbytes == bytes_at_start == 2 * (WINDOW + CHUNK) * (3 + 1) * 4


@pytest.mark.parametrize("seed", range(20))
def test_rotating_rewinds_only_where_the_window_is_whole(seed: int) -> None:
    chooser, cache, seen = random.Random(seed), rotating(), 0
    rewound = refused = 0
    for _ in range(60):
        target = chooser.randint(0, seen)
        if cache.can_rewind_to(target):
            cache.rewind(target)
            seen, rewound = target, rewound + 1
        else:
            with pytest.raises(ValueError, match="the window moved on"):
                cache.rewind(target)
            refused += 1
        for _ in range(chooser.randint(1, 3)):
            count = chooser.randint(1, CHUNK)
            k, v = cache.append(*tokens(seen, count))
            first_visible = max(0, seen - (WINDOW - 1))
            seen += count
            assert positions_seen(k, v) == list(range(first_visible, seen))
    assert rewound > 0
    assert refused > 0


@pytest.mark.parametrize("make", [growing, rotating])
def test_a_shared_cache_shows_what_its_source_showed(make) -> None:
    source = make()
    shared, chooser = SharedCache(source), random.Random(3)
    assert isinstance(shared, LayerCache)
    assert not isinstance(shared, (TokenCache, StateCache))  # nothing is remembered of it
    for _ in range(30):
        count = chooser.randint(1, CHUNK)
        expected = positions_seen(*source.append(*tokens(source.length, count)))
        assert positions_seen(*shared.seen(count)) == expected
        assert (shared.length, shared.nbytes, shared.device) == (source.length, 0, CPU)
        target = chooser.randint(0, source.length)
        assert shared.can_rewind_to(target) == source.can_rewind_to(target)
        if source.can_rewind_to(target):
            SequenceCache([source, shared]).rewind(target)
            assert shared.length == source.length == target


def test_a_sequence_rewinds_all_layers_or_none() -> None:
    layers = [growing(), rotating()]
    for start in range(0, 12, 3):
        for layer in layers:
            layer.append(*tokens(start, 3))
    sequence = SequenceCache(layers)
    assert not sequence.can_rewind_to(2)
    with pytest.raises(ValueError, match="cannot rewind 12 tokens to 2"):
        sequence.rewind(2)
    assert [layer.length for layer in layers] == [12, 12]


def test_contents_stay_as_they_are_while_a_cache_goes_on() -> None:
    for cache in (growing(), rotating()):
        for position in range(7):
            cache.append(*tokens(position, 1))
        start = max(cache.oldest, 4)
        held = cache.contents(start, 7)
        for position in range(7, 40):
            cache.append(*tokens(position, 1))
        assert positions_seen(*held) == list(range(start, 7))


@pytest.mark.parametrize("make", [growing, rotating])
@pytest.mark.parametrize("length", [2, 6, 23])
def test_a_filled_cache_goes_on_like_the_one_it_was_filled_from(make, length: int) -> None:
    source, copy = make(), make()
    for position in range(length):
        source.append(*tokens(position, 1))
    first = 0 if source.reach is None else max(0, length - source.reach)
    middle = (first + length) // 2
    copy.fill(length, [source.contents(first, middle), source.contents(middle, length)])
    assert copy.length == length
    assert copy.oldest == first
    for position in range(length, length + 9):
        expected = positions_seen(*source.append(*tokens(position, 1)))
        assert positions_seen(*copy.append(*tokens(position, 1))) == expected


def test_what_a_filled_rotating_cache_never_held_cannot_be_rewound_to() -> None:
    source, copy = rotating(), rotating()
    for position in range(12):
        source.append(*tokens(position, 1))
    copy.fill(12, [source.contents(12 - copy.reach, 12)])
    assert copy.can_rewind_to(12)
    assert not copy.can_rewind_to(11)
    with pytest.raises(ValueError, match="window moved on"):
        copy.rewind(11)

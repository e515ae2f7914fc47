"""Keys of images: which tokens attend to which, what a rewind drops, and prefixes with images."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from mrs.cache.cache_space import CacheBuilder, CacheConfig
from mrs.cache.cross_attention_kv import CrossAttentionCache, ImageKeys
from mrs.cache.layer_cache import LayerCache
from mrs.cache.prefix.manager import PrefixCacheManager
from mrs.cache.sequence_cache import SequenceCache
from mrs.kernels.paged import PagedKV
from mrs.plan.memory.cache_size import CacheSize

CPU = torch.device("cpu")
KV_HEADS, DIM, BLOCK = 2, 3, 4


def image(place: int, number: float, rows: int = 4) -> ImageKeys:
    keys = torch.full((KV_HEADS, rows, DIM), number)
    return ImageKeys(place, keys, -keys)


def cache_of(*images: ImageKeys, length: int = 0) -> CrossAttentionCache:
    cache = CrossAttentionCache(dtype=torch.float32, device=CPU)
    for each in images:
        cache.add(each)
    cache.advance(length)
    return cache


def attended(cache: CrossAttentionCache, place: int) -> list[float]:
    """The numbers of the rows that a token sees."""
    found = cache.visible_at(place)
    if found is None:
        return []
    keys, values = found
    assert torch.equal(keys, -values)
    return keys[0, :, 0].tolist()


def test_it_keeps_its_contract() -> None:
    assert isinstance(cache_of(), LayerCache)


def test_tokens_see_the_last_picture_and_those_right_before_it() -> None:
    cache = cache_of(image(2, 1, 2), image(5, 2, 1), image(6, 3, 2), image(7, 4, 1), length=12)
    assert [attended(cache, place) for place in (0, 1)] == [[], []]
    assert [attended(cache, place) for place in (2, 3, 4)] == [[1, 1]] * 3
    assert attended(cache, 5) == [2]
    assert attended(cache, 6) == [2, 3, 3]
    assert [attended(cache, place) for place in (7, 8, 11)] == [[2, 3, 3, 4]] * 3


def test_memory_is_that_of_the_pictures() -> None:
    cache = cache_of()
    cache.advance(1000)
    assert cache.nbytes == 0
    for place, rows in ((1000, 5), (1001, 7), (1010, 2)):
        cache.add(image(place, 1, rows))
    assert cache.nbytes == 14 * KV_HEADS * DIM * 4 * 2
    half = CrossAttentionCache(dtype=torch.bfloat16, device=CPU)
    half.add(image(0, 1, 5))
    assert half.nbytes == 5 * KV_HEADS * DIM * 2 * 2


def test_a_rewind_drops_what_stands_behind() -> None:
    cache = cache_of(image(2, 1), image(5, 2), image(6, 3), length=9)
    assert not cache.can_rewind_to(10)
    with pytest.raises(ValueError, match="cannot rewind 9 tokens to 10"):
        cache.rewind(10)
    cache.rewind(6)
    assert cache.length == 6
    assert attended(cache, 8) == [2] * 4
    cache.add(image(6, 7))  # another image at the same place
    assert attended(cache, 8) == [2] * 4 + [7] * 4
    cache.rewind(5)
    assert attended(cache, 5) == [1] * 4
    cache.rewind(0)
    assert attended(cache, 5) == []
    assert cache.nbytes == 0


def test_what_was_exported_stays_as_it_is() -> None:
    cache = cache_of(image(1, 1), image(2, 2), length=4)
    taken = cache.export(2, 4)
    assert taken is not None
    cache.rewind(2)
    cache.add(image(2, 9))
    assert set(taken.tensors) == {"2.keys", "2.values"}
    assert bool((taken.tensors["2.keys"] == 2).all())
    left, right = cache_of(image(1, 1), image(2, 2)).export(0, 4).split(2)
    assert [set(left.tensors), set(right.tensors)] == [
        {f"{place}.keys", f"{place}.values"} for place in (1, 2)
    ]


Tokens = Sequence[int]


def _space():
    builder = CacheBuilder(CacheConfig(CacheSize(100, 1, 10, BLOCK), torch.float32))
    builder.add_paged(PagedKV(1, 1, 1, block_tokens=BLOCK, dtype=torch.float32, device=CPU))
    builder.add(lambda: CrossAttentionCache(dtype=torch.float32, device=CPU))
    return builder.build()


SPACE = _space()
new_cache = SPACE.new


def feed(cache: SequenceCache, tokens: Tokens) -> SequenceCache:
    """Negative tokens are images, whose keys have their number."""
    images = cache.layers[1]
    assert isinstance(images, CrossAttentionCache)
    for place, token in enumerate(tokens, cache.length):
        cache.reserve(1)
        if token < 0:
            images.add(image(place, token))
        cache.advance(1)
    return cache


def store(prefixes: PrefixCacheManager, tokens: Tokens) -> None:
    cache = feed(new_cache(), tokens)
    prefixes.add_sequence(tokens, cache)
    cache.release()


def hit(prefixes: PrefixCacheManager, prompt: Tokens) -> int:
    """How many tokens are known of a prompt, whose cache is compared with one that saw them."""
    found = prefixes.search_for_matching_cache(prompt, leave_last=True)
    if found is None:
        return 0
    ours, fresh = found.layers[1], feed(new_cache(), prompt[: found.length]).layers[1]
    assert isinstance(ours, CrossAttentionCache)
    assert isinstance(fresh, CrossAttentionCache)
    assert ours.length == fresh.length == found.length
    assert ours.nbytes == fresh.nbytes
    for place in range(len(prompt) + 1):
        assert attended(ours, place) == attended(fresh, place)
    found.release()
    return ours.length


PAST = (1, -5, 2, 3, -6, -7, 4, 5)
PROMPTS: tuple[tuple[Tokens, int], ...] = (
    ((*PAST, 6, 7), 8),
    ((1, -5, 2, 3, -6, -8, 4, 5), 5),  # another second image
    ((1, -5, 2, 3, -6, -7, 9, 9, 9), 6),
    ((1, -5, 2, 3, 9), 4),
    ((1, -4, 2, 3), 1),  # another first image
    ((-5, 1), 0),
)


@pytest.mark.parametrize(("prompt", "known"), PROMPTS)
def test_a_prefix_brings_its_pictures_and_no_others(prompt: Tokens, known: int) -> None:
    prefixes = PrefixCacheManager(4, new_cache=new_cache)
    store(prefixes, PAST)
    assert hit(prefixes, prompt) == known


def test_stretches_with_and_without_pictures_split() -> None:
    prefixes = PrefixCacheManager(8, new_cache=new_cache)
    store(prefixes, PAST)
    store(prefixes, (1, -5, 2, 8, 8))  # splits between the images
    store(prefixes, (1, -5, 2, 3, -6, -9, 1))  # and between two in a row
    for prompt, known in ((PAST, 7), ((1, -5, 2, 8, 8, 1), 5), ((1, -5, 2, 3, -6, -9, 1, 2), 7)):
        assert hit(prefixes, prompt) == known


def test_dropped_like_other_memory() -> None:
    prefixes = PrefixCacheManager(1, new_cache=new_cache, budget_bytes={CPU: 10_000})
    store(prefixes, PAST)
    store(prefixes, (9, -5, 2, 2))
    prefixes.evict_caches()
    assert len(prefixes) == 2
    image_bytes = 4 * KV_HEADS * DIM * 4 * 2
    assert prefixes.nbytes == 4 * image_bytes + (len(PAST) + 4) * 8
    assert hit(prefixes, (*PAST, 1)) == len(PAST)
    tight = PrefixCacheManager(8, new_cache=new_cache, budget_bytes={CPU: 2 * image_bytes})
    store(tight, PAST)
    tight.evict_caches()
    assert len(tight) == 0

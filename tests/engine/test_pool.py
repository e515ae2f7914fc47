"""A pool of blocks never grows: sequences wait for it, and past ones make room for new ones."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from mrs.engine.engine import Engine
from mrs.errors import ContextFull
from mrs.model.decoder import Decoder
from support.engines import Asked, generate, make_engine
from support.suites import first
from support.tiny_decoders import GREEDY, VOCABULARY, tiny_decoder

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pool_engine(decoder: Decoder, blocks: int | None, block_tokens: int = 8, n: int = 4) -> Engine:
    return make_engine(
        decoder,
        planned_tokens=64,
        context_tokens=200,
        block_tokens=block_tokens,
        pool_blocks=blocks,
        chunk_tokens=16,
        max_seqs=8,
        prefix_cache_n=n,
    )


def pool_bytes(engine: Engine) -> int:
    """Bytes of all tensors that blocks are in."""
    return sum(layer.nbytes for pool in engine.caches.space.pools for layer in pool.layers)


def prompts(count: int) -> list[list[int]]:
    """Some begin alike."""
    chance = random.Random(count)
    shared = [chance.randrange(1, VOCABULARY) for _ in range(30)]
    return [
        [*(shared if n % 2 else []), *(chance.randrange(1, VOCABULARY) for _ in range(5 + n % 9))]
        for n in range(count)
    ]


@pytest.mark.few("hybrid-prefixes-16-6")
@pytest.mark.values
@pytest.mark.parametrize(("block_tokens", "blocks"), [(8, 10), (16, 6), (32, 3), (64, 2)])
@pytest.mark.parametrize("n", [0, 4], ids=["no prefixes", "prefixes"])
@pytest.mark.parametrize("kind", first(2, ["window", "hybrid", "dense", "latent"]))
def test_replies_are_those_of_a_cache_that_grows(
    kind: str, n: int, block_tokens: int, blocks: int
) -> None:
    decoder, sampling = tiny_decoder(kind), replace(GREEDY, max_tokens=25)
    engine = pool_engine(decoder, blocks, block_tokens, n)
    planned_bytes = pool_bytes(engine)
    asked = [Asked.of(engine, prompt, sampling) for prompt in prompts(12)]
    most = 0
    while engine.stats[:2] != (0, 0):
        engine.step()
        most = max(most, len(engine.scheduler.running))
        assert pool_bytes(engine) == planned_bytes
    assert most > 1
    assert block_tokens > 8 or engine.stats.preempted > 0
    assert not any(each.sequence.error for each in asked)
    alone = pool_engine(decoder, None)
    expected = [generate(alone, prompt, sampling) for prompt in prompts(12)]
    assert [each.finish() for each in asked] == expected


def test_what_sequences_share_counts_once() -> None:
    """Each takes 10 of the 24 blocks, and 8 of these are the same."""
    decoder, sampling = tiny_decoder("dense"), replace(GREEDY, max_tokens=8)
    engine, shared = pool_engine(decoder, 24), list(range(1, 46)) + list(range(1, 20))
    planned_bytes = pool_bytes(engine)
    begun = [Asked.of(engine, [*shared, n, n + 1, n + 2], sampling) for n in range(1, 9)]
    most = 0
    while engine.stats[:2] != (0, 0):
        engine.step()
        most = max(most, len(engine.scheduler.running))
    assert most >= 4
    assert pool_bytes(engine) == planned_bytes
    alone = pool_engine(decoder, None, n=0)
    for n, asked in enumerate(begun, 1):
        assert asked.finish() == generate(alone, [*shared, n, n + 1, n + 2], sampling)


def test_layers_with_a_window_limit_short_sequences() -> None:
    """They have blocks for as many sequences of the planned length as the pool holds."""
    engine = pool_engine(tiny_decoder("window"), 24)
    planned_bytes = pool_bytes(engine)
    asked = [Asked.of(engine, [n] * 5, replace(GREEDY, max_tokens=25)) for n in range(1, 9)]
    while engine.stats[:2] != (0, 0):
        engine.step()
    assert all(len(each.finish()) == 25 for each in asked)
    assert pool_bytes(engine) == planned_bytes


def test_without_a_pool_the_cache_grows() -> None:
    engine = pool_engine(tiny_decoder("dense"), None)
    before = pool_bytes(engine)
    generate(engine, [1] * 100, replace(GREEDY, max_tokens=2))
    assert pool_bytes(engine) > before


def test_past_sequences_leave_the_pool_for_new_ones() -> None:
    engine = pool_engine(tiny_decoder("dense"), 10)
    (pool,) = engine.caches.space.pools
    for number in range(1, 8):
        generate(engine, [number] * 40, replace(GREEDY, max_tokens=4))
        assert pool.used == 6 if number == 1 else 6 <= pool.used <= 10
    again = Asked.of(engine, [7] * 40, replace(GREEDY, max_tokens=4))
    again.finish()
    assert again.sequence.num_cached_tokens == 39
    assert pool.count == 10


def test_a_sequence_fills_a_pool_whose_blocks_it_shares_with_the_past() -> None:
    """The last block is shared and has to be written to, and no other is free."""
    decoder = tiny_decoder("dense")
    engine, alone = pool_engine(decoder, 5), pool_engine(decoder, None, n=0)
    (pool,) = engine.caches.space.pools
    for length in (36, 33, 34):
        sampling = replace(GREEDY, max_tokens=40 - length)
        asked = Asked.of(engine, [3] * length, sampling)
        assert asked.finish() == generate(alone, [3] * length, sampling)
    assert asked.sequence.num_cached_tokens > 0
    assert pool.count == 5


def test_no_sequence_is_longer_than_the_pool() -> None:
    engine = pool_engine(tiny_decoder("dense"), 5)
    assert engine.context_tokens == 40
    with pytest.raises(ContextFull, match="40 tokens and the KV cache holds 40"):
        generate(engine, [1] * 40, GREEDY)
    asked = Asked.of(engine, [1] * 30, replace(GREEDY, max_tokens=100))
    assert len(asked.finish()) == 10
    assert asked.sequence.finish_reason == "length"
    with pytest.raises(ContextFull, match="210 tokens and the model's context holds 200"):
        generate(pool_engine(tiny_decoder("dense"), 100), [1] * 210, GREEDY)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", ["dense", "window", "latent", "hybrid", "delta"])
def test_keys_and_values_are_of_the_type_that_is_asked_for(kind: str, dtype: torch.dtype) -> None:
    whole = tiny_decoder(kind)
    other = tiny_decoder(kind, cache_dtype=dtype)
    prompt, sampling = prompts(2)[1], replace(GREEDY, max_tokens=1, logprobs=5)
    found = []
    for decoder in (whole, other):
        engine = pool_engine(decoder, 10)
        asked = Asked.of(engine, prompt, sampling)
        tensors = [
            x for pool in engine.caches.space.pools for kv in pool.layers for x in kv.tensors
        ]
        assert {x.dtype for x in tensors} == {torch.float32 if decoder is whole else dtype}
        outputs = []
        while not asked.sequence.is_finished:
            outputs += engine.step()
        found.append(torch.tensor([outputs[0].token.logprob]))
    assert (found[0] - found[1]).abs().item() < {2: 0.1, 4: 1e-6}[dtype.itemsize]


def test_the_share_in_use_is_that_of_running_sequences() -> None:
    """Blocks that two of them share count once, and those of the prefix cache do not."""
    engine, sampling = pool_engine(tiny_decoder("dense"), 20), replace(GREEDY, max_tokens=25)
    prompt = prompts(2)[1][:30]
    assert engine.stats.kv_cache_share == 0
    first = Asked.of(engine, prompt, sampling)
    first.advance()
    assert engine.stats.kv_cache_share == pytest.approx(4 / 20)  # 30 tokens, 8 a block
    first.finish()
    assert engine.caches.space.pools[0].used > 0
    assert engine.stats.kv_cache_share == 0
    for _ in range(2):
        Asked.of(engine, prompt, sampling).advance()
    assert engine.stats.running == 2
    shared = 3  # the last block of the prompt is each one's own
    assert engine.stats.kv_cache_share == pytest.approx((shared + 2) / 20)

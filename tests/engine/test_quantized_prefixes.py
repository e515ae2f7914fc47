"""With quantized keys and values, remembered, preempted and drafted replies are those alone."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from test_speculation import HalfRight

from mrs.cache.prefix import chain
from mrs.cache.prefix.disk import DiskPrefixCache
from mrs.engine.engine import Engine
from mrs.formats import FORMATS as FORMATS_OF_PLANS
from mrs.formats import KVFormat
from mrs.kernels.kv_codes import KVFormats
from mrs.model.decoder import Decoder
from mrs.plan.memory.cache_size import CacheSize
from mrs.plan.memory.kv_bytes import layer_kv_bytes
from support.engines import Asked, make_engine
from support.tiny_decoders import GREEDY, VOCABULARY, WARM, tiny_decoder

FORMATS = {"q8_0": KVFormats("Q8_0", "Q8_0"), "q8_0/q4_0": KVFormats("Q8_0", "Q4_0")}


@cache
def decoder(kind: str, name: str) -> Decoder:
    return tiny_decoder(kind, head_dim=32, cache_dtype=FORMATS[name])


def begin_engine(
    kind: str,
    name: str,
    n: int,
    folder: DiskPrefixCache | None = None,
    seqs: int = 1,
    *,
    planned_tokens: int = 48,
    speculate: bool = False,
) -> Engine:
    return make_engine(
        decoder(kind, name),
        planned_tokens=planned_tokens,
        context_tokens=400,
        chunk_tokens=24,
        max_seqs=5,
        planned_seqs=seqs,
        seed=5,
        prefix_cache_n=n,
        prefix_budget_bytes={},
        prefix_folder=folder,
        speculate=speculate,
    )


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", ["dense", "window", "hybrid"])
def test_conversations_in_memory_and_in_a_folder(
    kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They branch anywhere, and every few replies all memory is lost but the folder."""
    monkeypatch.setattr(chain, "BLOCK_TOKENS", 64)
    chance = random.Random(kind + name)
    forgetful = begin_engine(kind, name, 0)

    def begun() -> Engine:
        folder = DiskPrefixCache(str(tmp_path), kind, 1 << 30, key=b"key")
        return begin_engine(kind, name, 4, folder)

    engine, past, cached = begun(), [chance.randrange(VOCABULARY) for _ in range(70)], 0
    for turn in range(8):
        if turn % 3 == 2:
            engine.close()
            engine = begun()
        prompt = [*past[: chance.randint(40, len(past))], chance.randrange(VOCABULARY)]
        asked = Asked.of(engine, prompt, replace(GREEDY, max_tokens=6))
        tokens = asked.finish()
        assert tokens == Asked.of(forgetful, prompt, replace(GREEDY, max_tokens=6)).finish()
        cached += asked.sequence.num_cached_tokens
        past = [*prompt, *tokens, *(chance.randrange(VOCABULARY) for _ in range(9))]
    engine.close()
    assert cached > 100


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", ["dense", "window"])
def test_preempted_replies_are_those_alone(kind: str, name: str) -> None:
    reading = replace(GREEDY, max_tokens=40)
    prompts = [[number] * 30 for number in range(1, 6)]
    crowded, quiet = begin_engine(kind, name, 4, seqs=2), begin_engine(kind, name, 0)
    begun = [Asked.of(crowded, prompt, reading) for prompt in prompts]
    found = [each.finish() for each in begun]
    assert found == [Asked.of(quiet, prompt, reading).finish() for prompt in prompts]
    assert crowded.stats.preempted > 0 or kind == "window"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", ["dense", "window", "hybrid"])
def test_drafts_change_no_reply(kind: str, name: str) -> None:
    """Half of them are wrong, and they cross the bounds of blocks."""
    prompt, settings = [3, 1, 4] * 18, replace(WARM, max_tokens=90, seed=2)
    plain = Asked.of(begin_engine(kind, name, 0), prompt, settings).finish()
    engine = begin_engine(kind, name, 0, planned_tokens=300, speculate=True)
    asked = Asked.of(engine, prompt, settings)
    asked.sequence.lookup = HalfRight([*prompt, *plain])  # type: ignore[assignment]
    assert asked.finish() == plain
    assert 20 < engine.stats.accepted_tokens < engine.stats.drafted_tokens


def test_a_prefix_goes_on_in_the_middle_of_a_block_while_its_rests_are_there() -> None:
    engine, prompt = begin_engine("dense", "q8_0", 4), [n % VOCABULARY for n in range(100)]
    settings = replace(GREEDY, max_tokens=1)
    Asked.of(engine, prompt, settings).finish()
    again = Asked.of(engine, [*prompt, 5], settings)
    again.finish()
    assert again.sequence.num_cached_tokens == 100
    Asked.of(engine, [*prompt, *range(40), *range(20)], settings).finish()
    for n in range(40):  # they need all slots
        Asked.of(engine, [n + 1] * 200, settings).finish()
    later = Asked.of(engine, [*prompt, 6], settings)
    later.finish()
    assert later.sequence.num_cached_tokens in (0, 64)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", ["dense", "window"])
@pytest.mark.parametrize("tokens", [100, 3000])
def test_caches_take_the_planned_bytes(tokens: int, kind: str, name: str) -> None:
    caches = decoder(kind, name)
    sizes, cpu = CacheSize(tokens, 2, 256), torch.device("cpu")
    planned = KVFormat(*(FORMATS_OF_PLANS[each] for each in FORMATS[name]))
    found = caches.new_space(sizes).allocated_bytes([])
    assert found == {
        cpu: sum(layer_kv_bytes(layer, sizes, planned) for layer in caches.spec.layers)
    }

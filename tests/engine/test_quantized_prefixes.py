"""With quantized keys and values, remembered and preempted replies are those from nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from mrs.cache.prefix import chain
from mrs.cache.prefix.disk import DiskPrefixCache
from mrs.engine.engine import Engine
from mrs.kernels.kv_codes import KVFormats
from mrs.model.decoder import Decoder
from support.engines import Asked, make_engine
from support.tiny_decoders import GREEDY, VOCABULARY, tiny_decoder

FORMATS = {"q8_0": KVFormats("Q8_0", "Q8_0"), "q8_0/q4_0": KVFormats("Q8_0", "Q4_0")}


@cache
def decoder(kind: str, name: str) -> Decoder:
    return tiny_decoder(kind, head_dim=32, cache_dtype=FORMATS[name])


def begin_engine(
    kind: str, name: str, n: int, folder: DiskPrefixCache | None = None, seqs: int = 1
) -> Engine:
    return make_engine(
        decoder(kind, name),
        planned_tokens=48,
        context_tokens=400,
        chunk_tokens=24,
        max_seqs=5,
        planned_seqs=seqs,
        seed=5,
        prefix_cache_n=n,
        prefix_budget_bytes={},
        prefix_folder=folder,
    )


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", ["dense", "window"])
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

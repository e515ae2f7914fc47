"""Replies that go on from remembered beginnings are those computed from nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from mrs.cache.prefix import chain
from mrs.cache.prefix.disk import DiskPrefixCache
from mrs.engine.engine import Engine
from mrs.request import Sampling
from support.engines import Asked, make_engine
from support.suites import first
from support.tiny_decoders import CPU, GREEDY, VOCABULARY, WARM, tiny_decoder

FAMILIES = ["dense", "window", "hybrid", "longrope", "delta", "latent", "dynamic"]


def begin_engine(
    kind: str,
    n: int,
    *,
    budget: int | None = None,
    split: bool = False,
    planned_tokens: int = 48,
    folder: DiskPrefixCache | None = None,
) -> Engine:
    return make_engine(
        tiny_decoder(kind, split=split),
        planned_tokens=planned_tokens,
        context_tokens=400,
        chunk_tokens=8,
        seed=5,
        prefix_cache_n=n,
        prefix_budget_bytes={} if budget is None else {CPU: budget},
        prefix_folder=folder,
    )


def reply(engine: Engine, prompt: list[int], sampling: Sampling) -> tuple[list[int], int]:
    """The tokens, and how many of the prompt were remembered."""
    made = Asked.of(engine, prompt, sampling)
    return made.finish(), made.sequence.num_cached_tokens


@pytest.mark.few("1-window-split", "2-hybrid-one device")
@pytest.mark.values
@pytest.mark.parametrize("split", [False, True], ids=["one device", "split"])
@pytest.mark.parametrize("kind", first(3, FAMILIES))
@pytest.mark.parametrize("seed", range(3))
def test_random_conversations_are_answered_as_from_nothing(
    kind: str, split: bool, seed: int
) -> None:
    """They branch, rewind, repeat, share system prompts and are evicted."""
    chance = random.Random(f"{kind} {seed}")
    remembering = begin_engine(
        kind, chance.choice([1, 3]), budget=chance.choice([None, 160_000]), split=split
    )
    forgetful = begin_engine(kind, 0, split=split)
    system = [chance.randrange(VOCABULARY) for _ in range(37)]
    histories = [[], system]
    cached = 0
    for _ in range(25):
        past = chance.choice(histories[-6:])
        if chance.random() < 0.3:
            past = past[: chance.randint(0, len(past))]
        new = [chance.randrange(VOCABULARY) for _ in range(chance.randint(1, 12))]
        prompt = past if past and chance.random() < 0.1 else [*past, *new]
        sampling = replace(chance.choice([GREEDY, WARM]), max_tokens=chance.randint(1, 7))
        tokens, hit = reply(remembering, prompt, sampling)
        assert tokens == reply(forgetful, prompt, sampling)[0]
        assert hit < len(prompt)
        cached += hit
        histories.append([*prompt, *tokens])
    assert cached > 100


@pytest.mark.few("dense-one device")
@pytest.mark.values
@pytest.mark.parametrize("split", [False, True], ids=["one device", "split"])
@pytest.mark.parametrize("kind", first(2, FAMILIES))
def test_later_processes_answer_as_from_nothing(
    kind: str, split: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every few replies all memory is lost but a folder, which two processes use at a time."""
    monkeypatch.setattr(chain, "BLOCK_TOKENS", 16)
    chance = random.Random(kind)

    def begun(planned: int) -> Engine:
        folder = DiskPrefixCache(str(tmp_path), kind, 1 << 30, key=b"key")
        return begin_engine(kind, 2, split=split, planned_tokens=planned, folder=folder)

    # Planned for few tokens, a layer with a window remembers all.
    engines, forgetful = [begun(12), begun(48)], begin_engine(kind, 0, split=split)
    # Beyond 40 tokens the dynamic rope shares nothing.
    first = 33 if kind == "dynamic" else 50
    histories, cached = [[chance.randrange(VOCABULARY) for _ in range(first)]], 0
    for turn in range(24):
        if turn % 3 == 2:
            engines.pop(0).close()
            engines.append(begun(chance.choice([12, 48, 200])))
        past = chance.choice(histories[-4:])
        past = past[: chance.randint(33, len(past))] if chance.random() < 0.3 else past
        prompt = [*past, *(chance.randrange(VOCABULARY) for _ in range(chance.randint(1, 3)))]
        sampling = replace(chance.choice([GREEDY, WARM]), max_tokens=chance.randint(1, 7))
        tokens, hit = reply(engines[turn % 2], prompt, sampling)
        assert tokens == reply(forgetful, prompt, sampling)[0]
        cached += hit
        histories.append([*prompt, *tokens])
    assert cached > 100
    for engine in engines:
        engine.close()
    last = begun(48)
    tokens, hit = reply(last, [*histories[-1], 5], replace(GREEDY, max_tokens=3))
    assert hit == len(histories[-1]) - 1 or kind == "dynamic"
    last.close()


@pytest.mark.parametrize("kind", ["hybrid", "delta", "window"])
def test_a_system_prompt_serves_the_third_process(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one sees where conversations part, and keeps the state there."""
    monkeypatch.setattr(chain, "BLOCK_TOKENS", 16)
    system, hits = [number % VOCABULARY for number in range(100)], []
    for new in ([1] * 40, [4] * 40, [7] * 40):
        folder = DiskPrefixCache(str(tmp_path), kind, 1 << 30, key=b"key")
        engine = begin_engine(kind, 4, folder=folder)
        hits.append(reply(engine, [*system, *new], replace(GREEDY, max_tokens=2))[1])
        engine.close()
    assert hits == [0, 0 if kind != "window" else hits[1], 96]


@pytest.mark.parametrize("kind", ["dense", "window", "hybrid"])
def test_the_next_turn_costs_its_new_tokens_only(kind: str) -> None:
    engine = begin_engine(kind, 4)
    history = [number % VOCABULARY for number in range(60)]
    for _ in range(4):
        tokens, hit = reply(engine, history, replace(GREEDY, max_tokens=9))
        assert hit == max(0, len(history) - 5 - 1) if len(history) > 60 else hit == 0
        # The reply's last token was never fed, and 5 new ones follow it.
        history = [*history, *tokens, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["dense", "window", "hybrid"])
def test_conversations_share_a_system_prompt_from_the_third_on(kind: str) -> None:
    engine = begin_engine(kind, 4)
    system = [number % VOCABULARY for number in range(64)]
    # Near the end of the first prompt a state is kept, but not here.
    length = 40 if kind == "hybrid" else 3
    hits = [
        reply(engine, [*system, *([new] * length)], replace(GREEDY, max_tokens=2))[1]
        for new in (1, 4, 7, 10)
    ]
    assert hits[2:] == [64, 64]
    assert hits[1] == (0 if kind == "hybrid" else 64)


@pytest.mark.parametrize(
    ("kind", "length", "most"),
    [("dense", 40, 1), ("hybrid", 40, 32), ("delta", 97, 1), ("hybrid", 96, 32), ("delta", 32, 32)],
)
def test_asking_again_computes_few_tokens(kind: str, length: int, most: int) -> None:
    """One, or those after the last state that was kept."""
    engine = begin_engine(kind, 4)
    prompt = [number % VOCABULARY for number in range(length)]
    first, _ = reply(engine, prompt, replace(WARM, max_tokens=5))
    again, hit = reply(engine, prompt, replace(WARM, max_tokens=5))
    assert again == first
    assert length - most <= hit < length


@pytest.mark.parametrize("kind", ["hybrid", "delta"])
@pytest.mark.parametrize("folder", [False, True], ids=["memory", "folder"])
def test_states_are_kept_where_messages_of_a_first_prompt_begin(
    kind: str, folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain, "BLOCK_TOKENS", 16)
    message = [0, *(1 + number % (VOCABULARY - 1) for number in range(47))]
    prompt, short = message * 5, replace(GREEDY, max_tokens=3)
    disk = DiskPrefixCache(str(tmp_path), kind, 1 << 30, key=b"key") if folder else None
    engine = begin_engine(kind, 8, folder=disk)
    Asked.of(engine, prompt, short, control_ids=frozenset({0})).finish()
    if disk is not None:
        engine.close()
        disk = DiskPrefixCache(str(tmp_path), kind, 1 << 30, key=b"key")
        engine = begin_engine(kind, 8, folder=disk)
    forgetful = begin_engine(kind, 0)
    for kept in (3, 1, 4, 2):
        branch = [*prompt[: 48 * kept], 0, 9, 8, kept]
        tokens, hit = reply(engine, branch, short)
        assert tokens == reply(forgetful, branch, short)[0]
        assert hit == 48 * kept
    engine.close()


@pytest.mark.parametrize("budget", [None, 3_000])
def test_few_states_of_a_prompt_are_kept(budget: int | None) -> None:
    """Though a message begins with each token; and never more than there is memory for."""
    engine = begin_engine("hybrid", 8, budget=budget)
    asked = Asked.of(engine, [0] * 380, GREEDY, control_ids=frozenset({0}))
    lengths = []
    while asked.sequence.num_computed_tokens < 380:
        engine.step()
        lengths.append(asked.sequence.num_computed_tokens)
        if budget is not None and lengths[-1] < 380:
            assert engine.caches._prefixes.nbytes <= budget
    kept = asked.sequence.snapshots
    assert 8 <= len(kept) <= 17
    assert set(kept) < set(lengths)


def test_without_a_cache_nothing_is_remembered() -> None:
    engine = make_engine(
        tiny_decoder("dense"),
        planned_tokens=48,
        context_tokens=400,
        kv_cache=False,
        prefix_cache_n=4,
    )
    prompt = list(range(20))
    assert reply(engine, prompt, replace(GREEDY, max_tokens=3))[1] == 0
    assert reply(engine, prompt, replace(GREEDY, max_tokens=3))[1] == 0
    assert [pool.used for pool in engine.caches.space.pools] == [0]


def test_running_sequences_hold_a_common_prefix_once() -> None:
    engine = make_engine(
        tiny_decoder("dense"),
        planned_tokens=2100,
        context_tokens=2200,
        max_seqs=16,
        planned_seqs=16,
        prefix_cache_n=16,
    )
    prefix = [number % VOCABULARY for number in range(2000)]
    sampling = replace(GREEDY, max_tokens=8)
    asked = [Asked.of(engine, [*prefix, number, 1], sampling) for number in range(16)]
    running = [each.sequence for each in asked]
    (pool,) = engine.caches.space.pools
    most = 0
    while not all(each.is_finished for each in running):
        engine.step()
        if all(each.cache is not None for each in running):
            most = max(most, pool.used)
    assert [each.num_cached_tokens for each in running] == [0] + [2000] * 15
    # 31 whole blocks of the prefix, and a last one for each sequence: the first goes on in the
    # block in which the prefix ends.
    layers, tokens = 3, 64 * (31 + 16)
    assert most * pool.block_bytes()[CPU] == layers * tokens * 2 * 2 * 8 * 4

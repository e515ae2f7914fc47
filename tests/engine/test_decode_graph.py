"""Decode steps with fixed memory choose the tokens of other steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import Tensor

from mrs.engine.decode_graph import DecodeGraphs, is_capturable
from mrs.engine.engine import Engine
from mrs.engine.sequence import SequenceRequest
from mrs.errors import MrsError
from mrs.kernels import attention_backend
from mrs.request import Sampling
from support.captured_steps import run_again, use_graphs
from support.engines import Asked, make_engine
from support.tiny_decoders import GREEDY, VOCABULARY, WARM, mixed_decoder, tiny_decoder

SIZES: dict[str, int] = {
    "planned_tokens": 64,
    "context_tokens": 200,
    "chunk_tokens": 16,
    "planned_seqs": 5,
    "max_seqs": 5,
    "seed": 3,
}
KINDS = ("dense", "window", "latent", "hybrid")
PENALTIES = replace(GREEDY, frequency_penalty=0.4, presence_penalty=0.3, repetition_penalty=1.2)
SAMPLINGS = {
    "greedy": (GREEDY,),
    "warm": (WARM,),
    "penalties": (PENALTIES, replace(WARM, frequency_penalty=0.5)),
    "mixed": (GREEDY, WARM, PENALTIES, replace(WARM, top_p=1.0, top_k=5), Sampling()),
}


def begin_engine(kind: str, *, has_graphs: bool = True) -> Engine:
    decoder = tiny_decoder(kind)
    engine = make_engine(decoder, **SIZES)
    if has_graphs:
        use_graphs(engine, decoder)
    return engine


def replies(engine: Engine, samplings: tuple[Sampling, ...], count: int = 8) -> list[list[int]]:
    """Sequences that start at different steps and have replies of different lengths."""
    chance = random.Random(5)
    asked: list[Asked] = []
    for number in range(count):
        prompt = [chance.randrange(1, VOCABULARY) for _ in range(chance.randint(1, 40))]
        sampling = replace(samplings[number % len(samplings)], max_tokens=chance.randint(2, 14))
        asked.append(Asked.of(engine, prompt, sampling))
        for _ in range(chance.randint(0, 6)):
            engine.step()
    return [each.finish() for each in asked]


def steps_of(graphs: DecodeGraphs) -> Callable[[], int]:
    """Counts the steps that graphs compute from now on."""
    counted = []
    write = graphs.decode

    def count(batch):  # type: ignore[no-untyped-def]
        tokens = write(batch)
        counted.append(tokens is not None)
        return tokens

    graphs.decode = count  # type: ignore[method-assign]
    return lambda: sum(counted)


@pytest.mark.few(2)
@pytest.mark.values
@pytest.mark.parametrize("samplings", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_replies_are_those_without_graphs(kind: str, samplings: tuple[Sampling, ...]) -> None:
    """Batches grow, shrink and are padded; other steps come between."""
    engine = begin_engine(kind)
    assert engine._graphs is not None
    num_steps = steps_of(engine._graphs)
    assert replies(engine, samplings) == replies(begin_engine(kind, has_graphs=False), samplings)
    assert num_steps() > 10
    assert engine._graphs._is_on
    assert {key.shape.rows for key in engine._graphs._graphs} > {1, 2}


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["capped", "exact gelu", "parallel", "layer norm"])
def test_other_families(kind: str) -> None:
    decoder = mixed_decoder(kind, "F32")
    found = []
    for has_graphs in (True, False):
        engine = make_engine(decoder, **SIZES)
        if has_graphs:
            use_graphs(engine, decoder)
        found.append(replies(engine, SAMPLINGS["mixed"], 4))
    assert found[0] == found[1]


@pytest.mark.parametrize("samplings", [SAMPLINGS["warm"], SAMPLINGS["mixed"]])
def test_recurrent_states_move_between_rows(samplings: tuple[Sampling, ...]) -> None:
    """Products of packed matrices do not depend on the other rows, and so nothing may differ."""
    decoder = mixed_decoder("delta", "BF16")
    found = []
    for has_graphs in (True, False):
        engine = make_engine(decoder, **SIZES)
        if has_graphs:
            use_graphs(engine, decoder)
        found.append(replies(engine, samplings))
    assert found[0] == found[1]


def test_with_torchs_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the lengths on the host, which no step may remember."""
    monkeypatch.setattr(attention_backend, "native_library", lambda: None)
    found = [
        replies(begin_engine("window", has_graphs=has_graphs), SAMPLINGS["mixed"])
        for has_graphs in (True, False)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(("kind", "repeated"), [("dense", [1, 2, 3, 4]), ("hybrid", [2, 29])])
def test_drafts_come_between(kind: str, repeated: list[int]) -> None:
    """Steps with drafts compute several tokens of a sequence, the others one.

    Recurrent states go back in the memory of their rows if tokens are not chosen.
    """
    found = []
    for has_graphs in (True, False):
        decoder = tiny_decoder(kind)
        engine = make_engine(
            decoder, planned_tokens=200, context_tokens=200, seed=3, speculate=has_graphs
        )
        num_steps = None
        if has_graphs:
            num_steps = steps_of(use_graphs(engine, decoder))
        asked = Asked.of(engine, repeated * 6, replace(GREEDY, max_tokens=30))
        found.append(asked.finish())
        if num_steps is not None:
            assert num_steps() > 0
            assert engine.stats.drafts > 0
    assert found[0] == found[1]


def test_graphs_are_captured_again_when_memory_moves() -> None:
    """Here the cache grows, and then the table of rotary angles."""
    captured = []

    def capture(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        captured.append(step)
        return run_again(step)

    decoder = tiny_decoder("dense")
    engine = make_engine(decoder, planned_tokens=64, context_tokens=1200, block_tokens=8)
    use_graphs(engine, decoder, capture)
    Asked.of(engine, [1, 2, 3], replace(GREEDY, max_tokens=20)).finish()
    assert len(captured) == 1
    pools = [pool.count for pool in engine.caches.space.pools]
    Asked.of(engine, [1, 2, 3], replace(GREEDY, max_tokens=100)).finish()
    assert [pool.count for pool in engine.caches.space.pools] != pools
    before = len(captured)
    assert before > 1
    Asked.of(engine, list(range(1, 30)) * 36, replace(GREEDY, max_tokens=4)).finish()
    assert len(captured) == before + 1


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["dense", "hybrid"])
@pytest.mark.parametrize("mistake", ["raises", "other tokens"])
def test_what_cannot_be_captured_runs_without(
    mistake: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def capture(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
        if mistake == "raises":
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        return lambda: step() + 1

    engine = begin_engine(kind, has_graphs=False)
    use_graphs(engine, tiny_decoder(kind), capture)
    expected = replies(begin_engine(kind, has_graphs=False), SAMPLINGS["mixed"])
    assert replies(engine, SAMPLINGS["mixed"]) == expected
    (record,) = caplog.records
    reason = "stream is capturing" if mistake == "raises" else "the tokens differ"
    assert record.getMessage().endswith(reason)


@pytest.mark.parametrize(
    "sampling",
    [
        replace(GREEDY, logprobs=2),
        replace(GREEDY, logit_bias=((3, 50.0),)),
        replace(GREEDY, dry_multiplier=0.8),
    ],
    ids=["log-probabilities", "biases", "DRY"],
)
def test_what_the_host_has_to_choose(sampling: Sampling) -> None:
    engine = begin_engine("dense")
    assert engine._graphs is not None
    num_steps = steps_of(engine._graphs)
    asked = Asked.of(engine, [1, 2, 3], replace(sampling, max_tokens=5))
    other = begin_engine("dense", has_graphs=False)
    plain = Asked.of(other, [1, 2, 3], replace(sampling, max_tokens=5))
    assert asked.finish() == plain.finish()
    assert num_steps() == 0


@pytest.mark.parametrize("sampling", [WARM, GREEDY])
def test_logits_that_are_not_finite_end_one_reply(
    sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, engine = tiny_decoder("dense"), begin_engine("dense")
    good, bad = (Asked.of(engine, [n, 2, 3], replace(sampling, max_tokens=6)) for n in (1, 7))
    bad.advance()
    compute = decoder._logits

    def spoil(x: Tensor) -> Tensor:
        logits = compute(x)
        logits[1:] = float("nan")
        return logits

    monkeypatch.setattr(decoder, "_logits", spoil)
    with pytest.raises(MrsError, match="no probabilities"):
        bad.finish()
    assert len(good.finish()) == 6


def test_a_request_without_a_reply() -> None:
    """An aborted sequence leaves its row to others."""
    engine = begin_engine("dense")
    short = replace(GREEDY, max_tokens=6)
    asked = [engine.add(SequenceRequest([n, 2, 3], short)) for n in range(1, 4)]
    for _ in range(2):
        engine.step()
    asked[1].abort()
    tokens = Asked(engine, asked[2])
    plain = Asked.of(begin_engine("dense", has_graphs=False), [3, 2, 3], short)
    assert tokens.finish() == plain.finish()


def test_what_can_be_captured() -> None:
    assert all(is_capturable(tiny_decoder(kind).spec) for kind in KINDS)
    hybrid = tiny_decoder("hybrid").spec
    only_states = replace(hybrid, layers=hybrid.layers[::2])
    for spec in (tiny_decoder("longrope").spec, tiny_decoder("dynamic").spec, only_states):
        assert not is_capturable(spec)

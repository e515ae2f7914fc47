"""Many replies at once are each the reply that they would be alone."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from mrs.engine.engine import Engine
from mrs.engine.sequence import DeadlineExceeded, SequenceRequest
from mrs.errors import ContextFull, UsageError
from mrs.model.decoder import Decoder
from mrs.request import Sampling
from support.engines import Asked, generate, make_engine
from support.suites import first
from support.tiny_decoders import GREEDY, VOCABULARY, WARM, tiny_decoder

KINDS = ["dense", "window", "hybrid", "longrope"]


def begin_engine(
    kind: str,
    *,
    max_seqs: int = 8,
    planned_seqs: int = 8,
    n: int = 0,
    seed: int | None = 3,
    decoder: Decoder | None = None,
) -> Engine:
    return make_engine(
        decoder or tiny_decoder(kind),
        planned_tokens=64,
        context_tokens=200,
        chunk_tokens=16,
        seed=seed,
        max_seqs=max_seqs,
        planned_seqs=planned_seqs,
        prefix_cache_n=n,
    )


def questions(count: int, seed: int = 0) -> list[tuple[list[int], Sampling]]:
    chance = random.Random(seed)
    shared = [chance.randrange(1, VOCABULARY) for _ in range(50)]
    made = []
    for _ in range(count):
        own = [chance.randrange(1, VOCABULARY) for _ in range(chance.randint(1, 40))]
        prompt = shared + own if chance.random() < 0.4 else own
        sampling = replace(chance.choice([GREEDY, WARM]), max_tokens=chance.randint(1, 15))
        made.append((prompt, sampling))
    return made


def ask(engine: Engine, question: tuple[list[int], Sampling]) -> Asked:
    """Its reply ends with token 0, too."""
    return Asked.of(engine, *question, stop_ids=frozenset({0}))


def alone(kind: str, asked: list[tuple[list[int], Sampling]]) -> list[list[int]]:
    return [ask(begin_engine(kind, max_seqs=1), question).finish() for question in asked]


@pytest.mark.few("hybrid-prefixes")
@pytest.mark.values
@pytest.mark.parametrize("n", [0, 4], ids=["no prefixes", "prefixes"])
@pytest.mark.parametrize("kind", first(2, reversed(KINDS)))
def test_replies_join_and_leave_a_batch_unchanged(kind: str, n: int) -> None:
    asked, chance = questions(14), random.Random(1)
    engine = begin_engine(kind, max_seqs=4, n=n)
    waiting, running, finished = list(enumerate(asked)), {}, {}
    while waiting or running:
        if waiting and chance.random() < 0.5:
            index, question = waiting.pop(0)
            running[index] = ask(engine, question)
        if running:
            running[chance.choice(list(running))].advance()
            for each in [i for i, a in running.items() if a.sequence.is_finished]:
                finished[each] = running.pop(each).finish()
    assert [finished[index] for index in range(len(asked))] == alone(kind, asked)


def test_many_decode_in_one_pass() -> None:
    engine = begin_engine("dense")
    asked = [([7, number], replace(GREEDY, max_tokens=20)) for number in range(1, 9)]
    begun = [Asked.of(engine, *question) for question in asked]
    for step in range(20):
        assert not any(each.sequence.is_finished for each in begun)
        assert len(engine.step()) == 8, step
    assert all(each.sequence.finish_reason == "length" for each in begun)


def test_prompts_are_read_between_tokens_of_others() -> None:
    engine = begin_engine("dense")
    talking = Asked.of(engine, [1, 2, 3], replace(GREEDY, max_tokens=30))
    talking.advance()
    said = talking.sequence.num_new_tokens
    Asked.of(engine, [5] * 60, replace(GREEDY, max_tokens=1)).finish()
    # 60 tokens at 15 a step beside the one of the other.
    assert talking.sequence.num_new_tokens - said == 4


@pytest.mark.few(1)
@pytest.mark.parametrize("n", [0, 4])
def test_sequences_that_outgrow_the_plan_wait(n: int) -> None:
    asked = [([number] * 30, replace(GREEDY, max_tokens=40)) for number in range(1, 6)]
    engine = begin_engine("dense", planned_seqs=2, n=n)
    begun = [ask(engine, question) for question in asked]
    largest = 0
    while not all(each.sequence.is_finished for each in begun):
        engine.step()
        allocated = [each.sequence for each in begun if each.sequence.cache is not None]
        largest = max(largest, len(allocated))
        computed_tokens = sum(each.num_computed_tokens for each in allocated)
        assert len(allocated) == 1 or computed_tokens <= 2 * 64
    assert largest > 1
    assert engine.stats.preempted > 0
    assert [each.finish() for each in begun] == alone("dense", asked)


@pytest.mark.parametrize(("own", "cached"), [(1, [0, 64, 64, 64]), (30, [0, 0, 80, 80])])
def test_those_that_begin_alike_wait_for_the_first(own: int, cached: list[int]) -> None:
    engine = begin_engine("hybrid", n=4)
    shared = [number % VOCABULARY for number in range(1, 81)]
    prompts = [[*shared, *[n] * own] for n in range(1, 5)]
    begun = [Asked.of(engine, prompt, replace(GREEDY, max_tokens=2)) for prompt in prompts]
    for each in begun:
        each.finish()
    # All go on from the last state of the first, or the second tells where they part.
    assert [each.sequence.num_cached_tokens for each in begun] == cached
    assert engine.stats[:5] == (0, 0, sum(cached), 4 * (81 + own) - sum(cached), 0)


def test_a_seed_makes_a_reply_the_same_whatever_else_runs() -> None:
    question = ([4, 5, 6], replace(WARM, max_tokens=12))
    first = ask(begin_engine("dense"), question).finish()
    crowded = begin_engine("dense")
    others = [ask(crowded, each) for each in questions(5, seed=9)]
    assert ask(crowded, question).finish() == first
    for each in others:
        each.finish()
    assert ask(crowded, question).finish() == first
    free = [ask(begin_engine("dense", seed=None), question).finish() for _ in range(4)]
    assert len({tuple(tokens) for tokens in free}) > 1


def test_an_aborted_sequence_leaves_the_others_running() -> None:
    engine = begin_engine("dense", n=2)
    asked = [([number, 9], replace(GREEDY, max_tokens=20)) for number in range(1, 4)]
    first, second, third = (ask(engine, question) for question in asked)
    first.advance()
    second.sequence.abort()
    ended = [output for output in engine.step() if output.token is None]
    assert [(each.sequence, each.finish_reason) for each in ended] == [
        (second.sequence, "cancelled")
    ]
    assert [first.finish(), third.finish()] == alone("dense", [asked[0], asked[2]])
    assert second.sequence.num_new_tokens == 1


class Interrupting:
    """A decoder one of whose layers calls `interrupt` when it is armed."""

    def __init__(self, kind: str, layer: int, interrupt) -> None:
        self._decoder = tiny_decoder(kind)
        self._layer = layer
        self._interrupt = interrupt
        self.armed = False

    def __getattr__(self, name):
        return getattr(self._decoder, name)

    def forward(self, *given):
        if not self.armed:
            return self._decoder.forward(*given)
        self.armed = False
        layers = self._decoder.stack.layers
        original = layers[self._layer]

        def interrupted(*values):
            out = original(*values)
            self._interrupt()
            return out

        layers[self._layer] = interrupted
        try:
            return self._decoder.forward(*given)
        finally:
            layers[self._layer] = original


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.few(2)
@pytest.mark.values
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("steps", [0, 1, 6])
def test_an_interrupted_step_is_done_again(kind: str, layer: int, steps: int) -> None:
    decoder = Interrupting(kind, layer, interrupt)
    engine = begin_engine(kind, n=2, decoder=decoder)
    asked = questions(3, seed=4)
    begun = [ask(engine, question) for question in asked]
    for _ in range(steps):
        begun[0].advance()
    decoder.armed = True
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert [each.finish() for each in begun] == alone(kind, asked)
    # What was stored of the interrupted step is right, too.
    follow_up = [([*asked[i][0], *begun[i].tokens, 3], GREEDY) for i in range(3)]
    follow_up = [(prompt, replace(sampling, max_tokens=4)) for prompt, sampling in follow_up]
    assert [ask(engine, each).finish() for each in follow_up] == alone(kind, follow_up)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_given_up_if_all_its_sequences_are_aborted(kind: str) -> None:
    begun: list[Asked] = []
    decoder = Interrupting(kind, 0, lambda: [each.sequence.abort() for each in begun])
    engine = begin_engine(kind, n=4, decoder=decoder)
    question = ([number % VOCABULARY for number in range(60)], replace(GREEDY, max_tokens=4))
    begun = [ask(engine, question)]
    engine.step()
    decoder.armed = True
    computed = engine.stats.computed_tokens
    assert engine.step() == []
    assert [output.finish_reason for output in engine.step()] == ["cancelled"]
    assert engine.stats.computed_tokens == computed
    # What the prefix cache has of it is right.
    assert [ask(engine, question).finish()] == alone(kind, [question])


def test_an_error_of_the_model_ends_the_sequences_of_its_step() -> None:
    def fail() -> None:
        raise RuntimeError("no more")

    decoder = Interrupting("dense", 1, fail)
    engine = begin_engine("dense", n=2, decoder=decoder)
    asked = [([1, 2], replace(GREEDY, max_tokens=5)), ([3, 4], replace(GREEDY, max_tokens=5))]
    failing = ask(engine, asked[0])
    failing.advance()
    decoder.armed = True
    with pytest.raises(RuntimeError, match="no more"):
        failing.finish()
    assert engine.stats[:2] == (0, 0)
    assert [ask(engine, each).finish() for each in asked] == alone("dense", asked)


def test_an_error_of_one_reply_is_its_own() -> None:
    engine = begin_engine("dense")
    failing = ask(engine, ([1, 2], replace(GREEDY, max_tokens=5)))
    other = ask(engine, ([3, 4], replace(GREEDY, max_tokens=5)))
    failing.sequence.sampler = None
    assert len(other.finish()) == 5
    with pytest.raises(TypeError):
        failing.advance()
    assert isinstance(failing.sequence.error, TypeError)


def test_a_late_reply_fails() -> None:
    engine = begin_engine("dense")
    late = engine.add(SequenceRequest([1, 2], GREEDY, timeout_s=0.0))
    in_time = engine.add(SequenceRequest([1, 2], replace(GREEDY, max_tokens=2), timeout_s=60.0))
    while engine.stats[:2] != (0, 0):
        engine.step()
    assert isinstance(late.error, DeadlineExceeded)
    assert (in_time.finish_reason, in_time.error) == ("length", None)


@pytest.mark.parametrize("steps", [0, 3])
def test_a_deadline_ends_sequences_that_run_or_wait(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, now_s = begin_engine("dense", max_seqs=1), 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    begun = [engine.add(SequenceRequest([1, 2], GREEDY, timeout_s=5.0)) for _ in range(2)]
    patient = ask(engine, ([1, 2], replace(GREEDY, max_tokens=3)))
    for _ in range(steps):
        engine.step()
    now_s = 105.5
    ended = [output for output in engine.step() if output.token is None]
    assert [output.sequence for output in ended] == begun
    assert [each.num_new_tokens for each in begun] == [steps, 0]
    assert all(isinstance(each.error, DeadlineExceeded) for each in begun)
    assert len(patient.finish()) == 3


def test_an_aborted_sequence_that_waits_is_never_computed() -> None:
    engine = begin_engine("dense", max_seqs=1)
    running = ask(engine, ([1, 2], replace(GREEDY, max_tokens=4)))
    waiting = ask(engine, ([3] * 20, GREEDY))
    running.advance()
    waiting.sequence.abort()
    ended = [output.sequence for output in engine.step() if output.finish_reason == "cancelled"]
    assert ended == [waiting.sequence]
    running.finish()
    assert engine.stats[:5] == (0, 0, 0, 2 + 3, 0)


def test_prompts_that_cannot_be_answered_are_refused() -> None:
    engine = begin_engine("dense")
    with pytest.raises(UsageError, match="no tokens"):
        Asked.of(engine, [], GREEDY)
    with pytest.raises(ContextFull):
        Asked.of(engine, [1] * 200, GREEDY)


def test_a_reply_ends_where_the_context_does() -> None:
    engine = begin_engine("dense")
    assert len(generate(engine, [1] * 190, replace(GREEDY, max_tokens=50))) == 10

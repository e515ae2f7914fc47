"""Many replies at once are each the reply that they would be alone."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from tiny_decoders import GREEDY, VOCABULARY, WARM, tiny_decoder

from mrs.errors import ContextFull, UsageError
from mrs.request import Sampling
from mrs.run.engine import Engine
from mrs.run.generation import Generation

KINDS = ["dense", "window", "hybrid", "longrope"]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_engine(
    kind: str, *, max_seqs: int = 8, planned_seqs: int = 8, n: int = 0, seed: int | None = 3
) -> Engine:
    return Engine(
        tiny_decoder(kind),
        planned_tokens=64,
        context_tokens=200,
        chunk_tokens=16,
        seed=seed,
        max_seqs=max_seqs,
        planned_seqs=planned_seqs,
        prefix_cache_n=n,
    )


class Asked:
    """A generation and the tokens it has got."""

    def __init__(self, engine: Engine, prompt: list[int], sampling: Sampling) -> None:
        self.tokens: list[int] = []
        self.engine = engine
        self.generation: Generation = engine.submit(prompt, sampling, self._take)

    def _take(self, choice) -> bool:
        self.tokens.append(choice.token)
        return choice.token == 0

    def finish(self) -> list[int]:
        while not self.generation.is_over:
            self.engine.advance(self.generation)
        return self.tokens


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


def alone(kind: str, asked: list[tuple[list[int], Sampling]]) -> list[list[int]]:
    return [Asked(make_engine(kind, max_seqs=1), *question).finish() for question in asked]


@pytest.mark.parametrize("n", [0, 4], ids=["no prefixes", "prefixes"])
@pytest.mark.parametrize("kind", KINDS)
def test_replies_join_and_leave_a_batch_unchanged(kind: str, n: int) -> None:
    asked, chance = questions(14), random.Random(1)
    engine = make_engine(kind, max_seqs=4, n=n)
    waiting, running, finished = list(enumerate(asked)), {}, {}
    while waiting or running:
        if waiting and chance.random() < 0.5:
            index, question = waiting.pop(0)
            running[index] = Asked(engine, *question)
        if running:
            index = chance.choice(list(running))
            if not running[index].generation.is_over:
                engine.advance(running[index].generation)
            for each in [i for i, a in running.items() if a.generation.is_over]:
                finished[each] = running.pop(each).tokens
    assert [finished[index] for index in range(len(asked))] == alone(kind, asked)


def test_many_decode_in_one_pass() -> None:
    engine = make_engine("dense")
    passes = 0
    forward = engine._decoder.forward

    class Counted:
        def __getattr__(self, name):
            return getattr(tiny_decoder("dense"), name)

        def forward(self, batch, caches):
            nonlocal passes
            passes += 1
            return forward(batch, caches)

    engine._decoder = Counted()
    asked = [([7, number], replace(GREEDY, max_tokens=20)) for number in range(1, 9)]
    begun = [engine.submit(prompt, sampling, lambda choice: False) for prompt, sampling in asked]
    for each in begun:
        while not each.is_over:
            engine.advance(each)
    assert passes == 20


def test_prompts_are_read_between_tokens_of_others() -> None:
    engine = make_engine("dense")
    talking = Asked(engine, [1, 2, 3], replace(GREEDY, max_tokens=30))
    engine.advance(talking.generation)
    said = len(talking.tokens)
    reading = Asked(engine, [5] * 60, replace(GREEDY, max_tokens=1))
    reading.finish()
    # 60 tokens at 15 a step beside the one of the other.
    assert len(talking.tokens) - said == 4


@pytest.mark.parametrize("kind", KINDS)
def test_threads_get_their_own_replies(kind: str) -> None:
    asked = questions(12, seed=2)
    engine = make_engine(kind, max_seqs=5, n=3)
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda question: Asked(engine, *question).finish(), asked))
    assert found == alone(kind, asked)


@pytest.mark.parametrize("n", [0, 4])
def test_sequences_that_outgrow_the_plan_wait(n: int) -> None:
    asked = [([number] * 30, replace(GREEDY, max_tokens=40)) for number in range(1, 6)]
    engine = make_engine("dense", planned_seqs=2, n=n)
    begun = [Asked(engine, *question) for question in asked]
    largest = 0
    while not all(each.generation.is_over for each in begun):
        engine.advance(next(e.generation for e in begun if not e.generation.is_over))
        held = [e.generation for e in begun if e.generation.cache is not None]
        largest = max(largest, len(held))
        assert len(held) == 1 or sum(g.fed for g in held) <= 2 * 64
    assert largest > 1
    assert [each.tokens for each in begun] == alone("dense", asked)


def test_those_that_begin_alike_wait_for_the_first() -> None:
    engine = make_engine("hybrid", n=4)
    shared = [number % VOCABULARY for number in range(1, 81)]
    begun = [Asked(engine, [*shared, n], replace(GREEDY, max_tokens=2)) for n in range(1, 5)]
    for each in begun:
        each.finish()
    # The second tells where they part; the others go on from there.
    assert [each.generation.cached_tokens for each in begun] == [0, 0, 80, 80]


def test_a_seed_makes_a_reply_the_same_whatever_else_runs() -> None:
    question = ([4, 5, 6], replace(WARM, max_tokens=12))
    first = Asked(make_engine("dense"), *question).finish()
    crowded = make_engine("dense")
    others = [Asked(crowded, *q) for q in questions(5, seed=9)]
    assert Asked(crowded, *question).finish() == first
    for each in others:
        each.finish()
    assert Asked(crowded, *question).finish() == first
    free = [Asked(make_engine("dense", seed=None), *question).finish() for _ in range(4)]
    assert len({tuple(tokens) for tokens in free}) > 1


def test_cancelling_leaves_the_others_running() -> None:
    engine = make_engine("dense", n=2)
    asked = [([number, 9], replace(GREEDY, max_tokens=20)) for number in range(1, 4)]
    first, second, third = (Asked(engine, *question) for question in asked)
    engine.advance(first.generation)
    second.generation.cancel()
    assert [first.finish(), third.finish()] == alone("dense", [asked[0], asked[2]])
    assert second.generation.reason == "cancelled"
    assert len(second.tokens) < 20


class Interrupting:
    """A decoder one of whose layers raises KeyboardInterrupt when asked to."""

    def __init__(self, kind: str, layer: int) -> None:
        self._decoder = tiny_decoder(kind)
        self._layer = layer
        self.armed = False

    def __getattr__(self, name):
        return getattr(self._decoder, name)

    def forward(self, batch, caches):
        if not self.armed:
            return self._decoder.forward(batch, caches)
        self.armed = False
        layers = self._decoder._layers
        original = layers[self._layer]

        def interrupt(x, batch, cache):
            original(x, batch, cache)
            raise KeyboardInterrupt

        layers[self._layer] = interrupt
        try:
            return self._decoder.forward(batch, caches)
        finally:
            layers[self._layer] = original


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("steps", [0, 1, 6])
def test_an_interrupted_step_is_done_again(kind: str, layer: int, steps: int) -> None:
    engine = make_engine(kind, n=2)
    engine._decoder = decoder = Interrupting(kind, layer)
    asked = questions(3, seed=4)
    begun = [Asked(engine, *question) for question in asked]
    for _ in range(steps):
        if not begun[0].generation.is_over:
            engine.advance(begun[0].generation)
    decoder.armed = True
    unfinished = next(each for each in begun if not each.generation.is_over)
    with pytest.raises(KeyboardInterrupt):
        engine.advance(unfinished.generation)
    assert [each.finish() for each in begun] == alone(kind, asked)
    # What was remembered of the interrupted step is right, too.
    follow_up = [([*asked[i][0], *begun[i].tokens, 3], GREEDY) for i in range(3)]
    follow_up = [(prompt, replace(sampling, max_tokens=4)) for prompt, sampling in follow_up]
    assert [Asked(engine, *q).finish() for q in follow_up] == alone(kind, follow_up)


def test_an_error_of_one_reply_is_its_own() -> None:
    engine = make_engine("dense")

    def refuse(choice):
        raise RuntimeError("no more")

    failing = engine.submit([1, 2], replace(GREEDY, max_tokens=5), refuse)
    other = Asked(engine, [3, 4], replace(GREEDY, max_tokens=5))
    assert len(other.finish()) == 5
    with pytest.raises(RuntimeError, match="no more"):
        engine.advance(failing)


def test_who_waits_is_woken_when_the_computing_thread_is_interrupted() -> None:
    engine = make_engine("dense")
    engine._decoder = decoder = Interrupting("dense", 1)
    leading = Asked(engine, [1, 2], replace(GREEDY, max_tokens=5))
    following = Asked(engine, [3, 4], replace(GREEDY, max_tokens=5))
    decoder.armed = True
    with pytest.raises(KeyboardInterrupt):
        engine.advance(leading.generation)
    leading.generation.cancel()
    thread = threading.Thread(target=following.finish)
    thread.start()
    thread.join(30)
    assert len(following.tokens) == 5


def test_prompts_that_cannot_be_answered_are_refused() -> None:
    engine = make_engine("dense")
    with pytest.raises(UsageError, match="no tokens"):
        engine.submit([], GREEDY, lambda choice: False)
    with pytest.raises(ContextFull):
        engine.submit([1] * 200, GREEDY, lambda choice: False)


def test_a_reply_ends_where_the_context_does() -> None:
    engine = make_engine("dense")
    tokens = list(engine.generate([1] * 190, replace(GREEDY, max_tokens=50)))
    assert len(tokens) == 10

"""Hundreds of requests from several threads: each reply is the one it would be alone."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from mrs.engine.loop import EngineLoop
from mrs.engine.sequence import SequenceRequest, TokenOutput
from mrs.process.turns import Client
from mrs.request import Sampling
from support.engines import generate, make_engine
from support.suites import first
from support.tiny_decoders import GREEDY, VOCABULARY, WARM, tiny_decoder

THREADS, REQUESTS = 6, 100  # for each kind of model


@dataclass(frozen=True)
class Request:
    """A prompt, and after how many tokens the reader leaves; None if it stays."""

    prompt_ids: list[int]
    sampling: Sampling
    leaves_after: int | None


def random_requests(chance: random.Random) -> list[Request]:
    """Most prompts begin like others: with a shared text, or a part of one.

    The first of each thread are long and unlike: together they need more blocks than there are.
    """

    def text(least: int, most: int) -> list[int]:
        return [chance.randrange(1, VOCABULARY) for _ in range(chance.randint(least, most))]

    shared = [text(40, 70) for _ in range(3)]
    to_the_end = replace(GREEDY, max_tokens=12)
    made = [Request(text(60, 60), to_the_end, None) for _ in range(THREADS)]
    for _ in range(REQUESTS - THREADS):
        beginning = chance.choice([*shared, []])
        if chance.random() < 0.3:
            beginning = beginning[: chance.randint(0, len(beginning))]
        sampling = replace(chance.choice([GREEDY, WARM]), max_tokens=chance.randint(1, 12))
        leaves_after = chance.randint(0, 5) if chance.random() < 0.15 else None
        made.append(Request([*beginning, *text(1, 20)], sampling, leaves_after))
    return made


def read(loop: EngineLoop, request: Request, client: Client) -> list[int]:
    """The tokens until the reader leaves."""
    stream = loop.submit(SequenceRequest(request.prompt_ids, request.sampling, client=client))
    tokens: list[int] = []
    while request.leaves_after is None or len(tokens) < request.leaves_after:
        output = next(stream, None)
        if output is None:
            break
        assert output.token is not None
        tokens.append(output.token.id)
    stream.close()
    return tokens


class Guesses:
    """Drafts anything: some tokens are right by chance."""

    def __init__(self) -> None:
        self._chance = random.Random(1)

    def draft(self, token_ids: list[int], most_tokens: int) -> list[int]:
        return [self._chance.randrange(VOCABULARY) for _ in range(most_tokens)]

    def learn(self, drafted: int, accepted: int) -> None:
        """Nothing to learn."""


@pytest.mark.full
@pytest.mark.parametrize("kind", first(1, ["hybrid", "dense", "window"]))
def test_each_reply_is_that_of_a_run_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrs.engine.drafter.PromptLookup", Guesses)
    chance = random.Random(kind)
    requests = random_requests(chance)
    engine = make_engine(
        tiny_decoder(kind),
        planned_tokens=100,
        planned_seqs=2,
        context_tokens=200,
        chunk_tokens=24,
        max_seqs=6,
        seed=3,
        prefix_cache_n=4,
        speculate=True,
    )
    loop, replies = EngineLoop(engine), {}
    step = engine.step

    def first_step(may_go_on: Callable[[], bool]) -> list[TokenOutput]:
        """Each thread has a request by then, however slow the machine is."""
        while loop.stats.waiting < THREADS:
            time.sleep(0.001)
        monkeypatch.setattr(engine, "step", step)
        return step(may_go_on)

    monkeypatch.setattr(engine, "step", first_step)

    def work(first: int) -> None:
        client = ("key", max(first - THREADS // 2, 0))  # half of the threads are one client
        for number in range(first, REQUESTS, THREADS):
            replies[number] = read(loop, requests[number], client)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    loop.close()
    stats = engine.stats
    assert stats.preempted > 0
    assert stats.cached_tokens > 500
    assert stats.drafted_tokens > 100
    alone = make_engine(
        tiny_decoder(kind), planned_tokens=200, context_tokens=200, chunk_tokens=24, seed=3
    )
    for number, request in enumerate(requests):
        whole = generate(alone, request.prompt_ids, request.sampling)
        assert replies[number] == whole[: request.leaves_after], number

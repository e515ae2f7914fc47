"""Clients that take more than their share of the engine's time sit out steps."""

from __future__ import annotations

import pytest
from torch import Tensor

from mrs.engine import engine as engine_module
from mrs.engine.own_time import OwnTime
from mrs.engine.sampling.processors import FloatArray
from mrs.engine.sequence import ScheduledBatch, SequenceRequest
from mrs.engine.worker import Worker
from mrs.process.turns import Client
from support.engines import make_engine
from support.tiny_decoders import GREEDY, tiny_decoder

HOG, NEIGHBOUR, THIRD = ("", "hog"), ("", "neighbour"), ("", "third")


def share_of(own_s: dict[Client, float], common_s: float) -> dict[Client, float]:
    """The mean time of a step of each client, by what the sequences of each take alone."""
    own_time, elapsed_s, counts = OwnTime(), 0.0, dict.fromkeys(own_s, 0)
    for _ in range(20_000):
        active = own_s.keys() - own_time.resting(own_s)
        assert active
        step_s = common_s + sum(own_s[each] for each in active)
        own_time.settle({each: own_s[each] for each in active}, step_s)
        elapsed_s += step_s
        for each in active:
            counts[each] += 1
    return {each: elapsed_s / count for each, count in counts.items()}


def test_a_neighbour_needs_at_most_twice_its_time_alone() -> None:
    for hog_s in (0.0, 0.0005, 0.003, 0.1, 2.0):
        found = share_of({HOG: hog_s, NEIGHBOUR: 0.00005}, 0.0006)
        assert found[NEIGHBOUR] <= 2.1 * 0.00065


def test_three_clients_need_at_most_three_times_their_time_alone() -> None:
    found = share_of({HOG: 0.004, THIRD: 0.003, NEIGHBOUR: 0.00005}, 0.0006)
    assert found[NEIGHBOUR] <= 3.3 * 0.00065
    assert found[HOG] < 1


def test_clients_alike_take_part_in_all_steps() -> None:
    found = share_of({HOG: 0.001, NEIGHBOUR: 0.001, THIRD: 0.001}, 0.0006)
    assert max(found.values()) <= 0.0037


def test_a_client_alone_never_rests() -> None:
    own_time = OwnTime()
    assert own_time.resting([HOG, NEIGHBOUR]) == set()
    own_time.settle({HOG: 1.0, NEIGHBOUR: 0.0}, 1.001)
    assert own_time.resting([HOG, NEIGHBOUR]) == {HOG}
    assert own_time.resting([HOG]) == set()


def test_a_client_that_starts_with_a_step_counts_in_it() -> None:
    own_time = OwnTime()
    assert own_time.resting([HOG]) == set()
    own_time.settle({HOG: 1.0, NEIGHBOUR: 0.0}, 1.001)
    assert own_time.resting([HOG, NEIGHBOUR]) == {HOG}


class Clock:
    """Time that passes in steps and where a reply takes its own, and nowhere else."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    thread_time = monotonic = perf_counter


class Slow:
    """A constraint that takes a second at each token, as a grammar may."""

    is_complete = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __call__(self, logits: FloatArray) -> None:
        self._clock.now_s += 1.0

    def append(self, token: int) -> None:
        pass

    def num_allowed(self, tokens: list[int]) -> int:
        return len(tokens)

    def forced_tokens(self) -> list[int]:
        return []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, forward = Clock(), Worker.forward

    def passing(worker: Worker, batch: ScheduledBatch) -> Tensor:
        clock.now_s += 0.1
        return forward(worker, batch)

    monkeypatch.setattr(engine_module, "time", clock)
    monkeypatch.setattr(Worker, "forward", passing)
    return clock


def lengths_beside(clock: Clock, neighbour: Client) -> tuple[int, int]:
    """Those of a slow client's reply and of a quick one's, once one of them has 100 tokens."""
    engine = make_engine(
        tiny_decoder("dense"), planned_tokens=64, context_tokens=200, chunk_tokens=16, seed=3,
        max_seqs=8, planned_seqs=8,
    )  # fmt: skip
    slow = engine.add(SequenceRequest([5, 6], GREEDY, client=HOG, constraint=Slow(clock)))
    quick = engine.add(SequenceRequest([7, 8], GREEDY, client=neighbour))
    while max(len(each.token_ids) for each in (slow, quick)) < 100:
        engine.step()
    return len(slow.token_ids), len(quick.token_ids)


def test_a_slow_reply_of_another_client_sits_out_steps(clock: Clock) -> None:
    slow, quick = lengths_beside(clock, NEIGHBOUR)
    assert quick == 100
    assert 5 < slow < 20
    assert clock.now_s < 2.2 * 100 * 0.1


def test_a_client_is_not_divided(clock: Clock) -> None:
    assert lengths_beside(clock, HOG) == (100, 100)


def test_a_long_prompt_sits_out_the_steps_after_a_neighbour_has_come(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only from its second step beside the neighbour on."""
    forward, beside = Worker.forward, list[set[Client]]()

    def passing(worker: Worker, batch: ScheduledBatch) -> Tensor:
        clock.now_s += 0.1 * sum(count for _, count in batch)
        beside.append({sequence.client for sequence, _ in batch})
        return forward(worker, batch)

    monkeypatch.setattr(Worker, "forward", passing)
    engine = make_engine(
        tiny_decoder("dense"), planned_tokens=400, context_tokens=200, chunk_tokens=16, seed=3,
        max_seqs=8, planned_seqs=8,
    )  # fmt: skip
    engine.add(SequenceRequest([5, 6] * 80, GREEDY, client=HOG))
    engine.step()
    engine.add(SequenceRequest([7, 8], GREEDY, client=NEIGHBOUR))
    for _ in range(5):
        engine.step()
    assert beside == [{HOG}, {HOG, NEIGHBOUR}, *[{NEIGHBOUR}] * 4]

"""The budget of a step follows the target gap between tokens."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from torch import Tensor

from mrs.engine import engine as engine_module
from mrs.engine.sequence import ScheduledBatch, SequenceRequest
from mrs.engine.step_budget import (
    LEAST_LONE_TOKENS,
    LEAST_TOKENS,
    LONE_TARGETS,
    REPLY_STEPS,
    SCORED_TOKENS,
    Chunk,
    StepBudget,
    StepRoom,
)
from mrs.engine.worker import Worker
from support.engines import make_engine
from support.tiny_decoders import GREEDY, tiny_decoder


def settled(budget: StepBudget, base_s: float, token_s: float, depth: int = 0) -> int:
    """The budget after some steps on a machine where a step takes base_s + tokens * token_s."""
    for _ in range(30):
        tokens = budget.tokens(depth)
        budget.measure([Chunk(tokens, depth)], base_s + tokens * token_s)
    return budget.tokens(depth)


@pytest.mark.parametrize("planned", [1.0, 400.0, 1e6])
def test_steps_with_prompts_stay_below_the_target_from_any_start(planned: float) -> None:
    tokens = settled(StepBudget(512, 0.25, planned), base_s=0.025, token_s=0.0023)
    usual_s = 0.025 + tokens * 0.0023
    assert 1.1 * usual_s < 0.25 < 1.3 * usual_s


def test_a_slow_machine_still_advances_and_a_fast_one_takes_whole_chunks() -> None:
    assert settled(StepBudget(512, 0.25, 100.0), 1.0, 0.1) == LEAST_TOKENS
    assert settled(StepBudget(512, 0.25, 100.0), 0.001, 1e-5) == 512


def test_a_client_alone_takes_longer_steps() -> None:
    budget = StepBudget(4096, 0.25, 1000.0)
    lone = budget.tokens(is_awaited=False)
    assert lone == pytest.approx(LONE_TARGETS * budget.tokens(), rel=0.01)
    assert StepBudget(4096, 0.25, 1.0).tokens(is_awaited=False) == LEAST_LONE_TOKENS


def test_nothing_bounds_a_step_without_a_target() -> None:
    assert StepBudget(512).tokens() == 512
    assert StepBudget(512, None, 1.0).tokens(10**5, is_awaited=False) == 512


def test_a_small_step_says_nothing_about_the_rate() -> None:
    budget = StepBudget(512, 0.25, 400.0)
    budget.measure([Chunk(3, 0)], 0.02)
    assert budget.tokens_per_s == 400.0


def test_no_step_of_a_deepening_prompt_exceeds_the_target() -> None:
    """Attention doubles the time of a token every 4,096 tokens; a short prompt comes between."""
    budget, depth, longest_s = StepBudget(512, 0.25, 700.0), 0, 0.0
    for step in range(3000):
        at = 0 if step % 7 == 0 else depth
        tokens = budget.tokens(at)
        seconds = tokens * (1 + at / 4096) / 700
        budget.measure([Chunk(tokens, at)], seconds)
        longest_s = max(longest_s, seconds)
        depth += tokens if at else 0
        depth = min(depth or 1, 32_000)
    assert depth == 32_000
    assert longest_s < 0.25


def test_what_prompts_at_several_depths_take_adds_up() -> None:
    budget = StepBudget(512, 0.25, 1000.0)
    budget.measure([Chunk(20, 20_000)], 0.2)
    assert budget.tokens(20_000) < budget.tokens() / 2
    room = StepRoom(budget, 10, is_awaited=True)
    deep = room.tokens(20_000) // 2
    room.take(Chunk(deep, 20_000))
    shallow = room.tokens(0)
    assert shallow == pytest.approx(budget.tokens() / 2 - 10, abs=3)
    room.take(Chunk(shallow, 0))
    assert room.is_full
    assert room.tokens(0) == 0


def test_replies_that_fill_a_step_leave_some_of_it_to_one_prompt() -> None:
    room = StepRoom(StepBudget(512, 0.25, 100.0), 400, is_awaited=True)
    assert room.tokens(0) == LEAST_TOKENS
    room.take(Chunk(LEAST_TOKENS, 0))
    assert room.is_full


def test_a_step_with_prompts_is_no_longer_than_some_steps_of_replies() -> None:
    """A fast model needs no long steps; of a slow one, the target is less."""
    budget = StepBudget(512, 0.25, 1000.0)
    assert budget.tokens() == int(0.85 * 0.25 * 1000)
    budget.measure_replies(0.004)
    assert budget.tokens() == int(0.85 * REPLY_STEPS * 0.004 * 1000)
    assert budget.tokens(is_awaited=False) == int(0.85 * LONE_TARGETS * REPLY_STEPS * 0.004 * 1000)
    for _ in range(20):
        budget.measure_replies(0.1)
    assert budget.tokens() == int(0.85 * 0.25 * 1000)


def test_a_step_that_was_interrupted_lengthens_no_others() -> None:
    budget = StepBudget(512, 0.25, 1000.0)
    for _ in range(5):
        budget.measure_replies(0.001)
    usual = budget.tokens()
    budget.measure_replies(3.0)
    assert budget.tokens() < 2 * usual
    budget.measure_replies(0.001)
    assert budget.tokens() < 1.3 * usual


def test_tokens_that_are_scored_have_their_own_rate() -> None:
    budget = StepBudget(4096, 0.25, 16_000.0)
    plain = budget.tokens()
    assert budget.tokens(is_scored=True) == pytest.approx(plain / SCORED_TOKENS, abs=1)
    for _ in range(20):  # each takes as long as five others
        tokens = budget.tokens(is_scored=True)
        budget.measure([Chunk(tokens, 0, is_scored=True)], tokens * 5 / 16_000)
    assert budget.tokens() == plain
    assert budget.tokens(is_scored=True) == pytest.approx(plain / 5, rel=0.02)
    room = StepRoom(budget, 0, is_awaited=True)
    room.take(Chunk(plain // 10, 0, is_scored=True))
    assert room.tokens(0) == pytest.approx(plain / 2, rel=0.02)
    assert room.tokens(0, is_scored=True) == pytest.approx(plain / 10, rel=0.02)


#: Seconds of a step, and of a token of a prompt, plain or scored, in it.
STEP_S, TOKEN_S, SCORED_S = 0.001, 0.0001, 0.0004


@pytest.mark.parametrize("is_scored", [False, True])
def test_prompts_of_one_client_hold_no_replies_of_another_up(
    is_scored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its replies have begun or not, each step takes as long as 16 steps of replies."""
    now_s, forward = 0.0, Worker.forward

    def passing(worker: Worker, batch: ScheduledBatch) -> Tensor:
        nonlocal now_s
        now_s += STEP_S
        for sequence, count in batch:
            if not sequence.is_decoding:
                now_s += count * (SCORED_S if sequence.prompt_scores else TOKEN_S)
        return forward(worker, batch)

    monkeypatch.setattr(Worker, "forward", passing)
    clock = SimpleNamespace(
        perf_counter=lambda: now_s, monotonic=lambda: now_s, thread_time=lambda: now_s
    )
    monkeypatch.setattr(engine_module, "time", clock)
    engine = make_engine(
        tiny_decoder("dense"), planned_tokens=400, context_tokens=400, chunk_tokens=256,
        max_seqs=4, planned_seqs=4, target_gap_s=0.25, prompt_tokens_per_s=1 / TOKEN_S,
    )  # fmt: skip
    reply = replace(GREEDY, max_tokens=4)
    engine.add(SequenceRequest([1, 2], reply, client=("neighbour",)))
    while engine.scheduler.running or engine.scheduler.waiting:
        engine.step()
    prompt = replace(GREEDY, max_tokens=0, prompt_logprobs=1) if is_scored else reply
    engine.add(SequenceRequest([7] * 300, prompt, client=("other",)))
    steps_s, begun_s = [], now_s
    for number in range(300):
        if number == 3:
            engine.add(SequenceRequest([3, 4], reply, client=("neighbour",)))
        engine.step()
        steps_s.append(now_s - begun_s)
        begun_s = now_s
        if not engine.scheduler.running:
            break
    assert sum(steps_s) > 300 * (SCORED_S if is_scored else TOKEN_S)
    assert max(steps_s) <= REPLY_STEPS * STEP_S

"""The budget of a step follows the target gap between tokens."""

from __future__ import annotations

import pytest

from mrs.engine.step_budget import (
    LEAST_LONE_TOKENS,
    LEAST_TOKENS,
    LONE_TARGETS,
    Chunk,
    StepBudget,
    StepRoom,
)


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

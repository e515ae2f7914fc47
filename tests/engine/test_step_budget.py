"""The budget of a step follows the target gap between tokens."""

from __future__ import annotations

import pytest

from mrs.engine.step_budget import LEAST_TOKENS, StepBudget


def settled(budget: StepBudget, base_s: float, token_s: float, *, decoding: int = 4) -> int:
    """The budget after some steps on a machine where a step takes base_s + tokens * token_s."""
    for _ in range(30):
        tokens = budget.tokens(decoding)
        budget.measure(tokens, base_s + tokens * token_s)
    return budget.tokens(decoding)


@pytest.mark.parametrize("planned", [1.0, 400.0, 1e6])
def test_steps_with_prompts_stay_below_the_target_from_any_start(planned: float) -> None:
    tokens = settled(StepBudget(512, 0.25, planned), base_s=0.025, token_s=0.0023)
    usual_s = 0.025 + tokens * 0.0023
    assert 1.1 * usual_s < 0.25 < 1.3 * usual_s


def test_a_slow_machine_still_advances_and_a_fast_one_takes_whole_chunks() -> None:
    assert settled(StepBudget(512, 0.25, 100.0), 1.0, 0.1) == 4 + LEAST_TOKENS
    assert settled(StepBudget(512, 0.25, 100.0), 0.001, 1e-5) == 512


def test_nothing_bounds_a_step_without_replies_or_without_a_target() -> None:
    assert StepBudget(512, 0.25, 100.0).tokens(0) == 512
    assert StepBudget(512).tokens(4) == 512


def test_a_small_step_says_nothing_about_the_rate() -> None:
    budget = StepBudget(512, 0.25, 400.0)
    budget.measure(3, 0.02)
    assert budget.tokens_per_s == 400.0

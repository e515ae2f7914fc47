"""Drafts that are rejected cost a reply little, and those that are accepted grow."""

from __future__ import annotations

import pytest

from mrs.engine.draft_allowance import DraftAllowance, SharedAllowance
from mrs.plan.speed.draft_gain import FIRST_CHANCE, DraftCost

MIXTURE_ROWS = tuple(
    row + 0.7 * ((1 - 0.875 ** (number + 1)) / 0.125 - 1)
    for number, row in enumerate(DraftCost(0.0).row_costs)
)
MIXTURE = DraftCost(0.0, step=0.05, row_costs=MIXTURE_ROWS)
COSTS = {
    "dense": DraftCost(0.0),
    "mixture": MIXTURE,
    "states": DraftCost(0.0, recomputes=True, factors=((1, 1.8), (3, 1.6))),
    "tiny": DraftCost(0.0, factors=((3, 2.5),)),
}


def lost_steps(cost: DraftCost, tokens: int) -> tuple[float, int]:
    """What drafts that are all rejected cost a reply of so many tokens, and how many there are."""
    allowance, lost, drafts = DraftAllowance(), 0.0, 0
    for number in range(tokens):
        if length := allowance.most_tokens(cost, number, 15):
            allowance.learn(cost, length, 0)
            lost += cost.steps(length) - 1 + cost.rejected
            drafts += 1
    return lost, drafts


@pytest.mark.parametrize("kind", COSTS)
def test_rejected_drafts_cost_little(kind: str) -> None:
    for tokens in (100, 1000):
        lost, drafts = lost_steps(COSTS[kind], tokens)
        assert 0 < lost <= 0.02 * tokens
        assert drafts > (tokens > 100), "it is tried again"


@pytest.mark.parametrize("kind", COSTS)
def test_accepted_drafts_grow(kind: str) -> None:
    allowance, lengths = DraftAllowance(), []
    for number in range(120):
        if length := allowance.most_tokens(COSTS[kind], number, 15):
            allowance.learn(COSTS[kind], length, length)
            lengths.append(length)
    assert len(lengths) > 30
    assert lengths[-1] >= 7


def test_replies_lend_each_other_what_they_may_lose() -> None:
    """Drafts of a tiny model are so dear that a reply alone has none."""
    shared, cost = SharedAllowance(), DraftCost(0.0, step=1.6)
    lengths = []
    for _ in range(8):
        allowance = shared.begin(FIRST_CHANCE)
        if length := allowance.most_tokens(cost, 20, 15):
            allowance.learn(cost, length, length)
        lengths.append(length)
        shared.end(allowance, 64)
    assert lengths[0] == 0
    assert all(lengths[2:])


def test_replies_together_lose_little() -> None:
    shared, cost, lost = SharedAllowance(), DraftCost(0.0, step=1.6), 0.0
    for _ in range(50):
        allowance = shared.begin(FIRST_CHANCE)
        for number in range(100):
            if length := allowance.most_tokens(cost, number, 15):
                allowance.learn(cost, length, 0)
                lost += cost.steps(length) - 1
        shared.end(allowance, 100)
    assert 0 < lost <= 0.02 * 50 * 100


def test_many_short_replies_lose_little() -> None:
    """What the first drafts of each may lose is lent, and not given."""
    shared, cost, lost = SharedAllowance(), DraftCost(0.0, step=0.4), 0.0
    for _ in range(400):
        allowance = shared.begin(FIRST_CHANCE)
        for number in range(7):
            if length := allowance.most_tokens(cost, number, 15):
                allowance.learn(cost, length, 0)
                lost += cost.steps(length) - 1
        shared.end(allowance, 7)
    assert 0 < lost <= 0.01 * 400 * 7


def test_a_text_that_changes_has_drafts_soon() -> None:
    """After a long text without repetitions a single success is enough."""
    allowance, cost = DraftAllowance(), COSTS["dense"]
    for number in range(300):
        if length := allowance.most_tokens(cost, number, 3):
            allowance.learn(cost, length, 0)
    number = next(n for n in range(300, 400) if allowance.most_tokens(cost, n, 3))
    allowance.learn(cost, 1, 1)
    assert allowance.most_tokens(cost, number + 2, 3)


def test_rows_cost_by_groups() -> None:
    dense = DraftCost(0.0)
    steps = [dense.rows(count) for count in range(1, 17)]
    assert steps == sorted(steps)
    assert steps[0] == 1
    assert steps[4] - steps[3] > 3 * (steps[3] - steps[2])
    assert dense.best_length(0.6, 15) == 3, "a fifth row is of another group"


def test_heads_read_again_what_the_model_has_computed() -> None:
    model, head, heads = (DraftCost(0.1, heads=count) for count in (0, 1, 3))
    rows = model.rows
    assert model.steps(3) == pytest.approx(rows(4) + 0.1 * 3)
    assert head.steps(3) == pytest.approx(rows(4) + 0.1 * (rows(4) + 2))
    for length in (1, 3):
        drafting = 3 * rows(length + 3)
        assert heads.steps(length) == pytest.approx(rows(1 + length) + 0.1 * drafting)
    assert heads.best_length(1.0, 15) == heads.most_tokens == 3


def test_measured_lengths_say_what_their_neighbours_cost() -> None:
    planned = DraftCost(0.1)
    cost = planned._replace(factors=((3, 1.5), (7, 2.0)))
    for length, factor in ((1, 1.5), (3, 1.5), (6, 2.0), (15, 2.0)):
        assert cost.steps(length) == pytest.approx(factor * planned.steps(length))
    disturbed = planned._replace(factors=((3, 0.1),))
    assert disturbed.steps(3) > 1, "a draft is never free"


def test_a_state_that_is_computed_again_makes_drafts_dearer() -> None:
    plain = DraftCost(0.1)
    again = plain._replace(recomputes=True)
    assert again.gain(0.5, 3) < plain.gain(0.5, 3)
    assert again.gain(1.0, 3) == plain.gain(1.0, 3), "nothing is rejected"

"""A budget of thoughts with a draft model: no drafted token slips through."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_draft_model import PROMPT, begin_engine, plain_engine

from mrs.engine.engine import Engine
from mrs.engine.sampling.thought_budget import ThoughtBudget
from mrs.engine.sequence import SequenceRequest
from mrs.request import Sampling
from support.draft_pace import let_steps_take_as_planned
from support.engines import Asked
from support.tiny_decoders import GREEDY, WARM

END = [3, 1, 2]


@pytest.fixture(autouse=True)
def as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    let_steps_take_as_planned(monkeypatch)


class OpenThought:
    """A thought from the first token on, up to END."""

    def __init__(self) -> None:
        self.tokens: tuple[int, ...] = ()
        self.is_inside, self.is_divided = True, False

    @property
    def num_inside(self) -> int:
        return len(self.tokens)

    num_tokens = num_inside

    def push(self, token: int) -> None:
        if self.is_inside:
            self.tokens += (token,)
            self.is_inside = self.tokens[-len(END) :] != tuple(END)


def reply(engine: Engine, sampling: Sampling, budget: int) -> tuple[list[int], Asked]:
    constraint = ThoughtBudget(OpenThought(), budget, [END])
    request = SequenceRequest(PROMPT, sampling, constraint=constraint)
    asked = Asked(engine, engine.add(request))
    return asked.finish(), asked


@pytest.mark.few(3)
@pytest.mark.values
@pytest.mark.parametrize("budget", [0, 1, 5, 17, 40])
@pytest.mark.parametrize("sampling", [GREEDY, replace(WARM, seed=3)], ids=["greedy", "seeded"])
@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_replies_are_those_without_drafts(kind: str, sampling: Sampling, budget: int) -> None:
    settings = replace(sampling, max_tokens=70)
    plain, _ = reply(plain_engine(kind), settings, budget)
    drafted, asked = reply(begin_engine(kind), settings, budget)
    assert drafted == plain
    assert plain[budget : budget + len(END)] == END
    assert sampling is not GREEDY or asked.sequence.drafts.accepted_tokens > 30


@pytest.mark.parametrize("budget", [0, 5, 17])
def test_drafts_drawn_at_random_end_there_too(budget: int) -> None:
    tokens, _ = reply(begin_engine("dense"), replace(WARM, max_tokens=70), budget)
    assert tokens[budget : budget + len(END)] == END


@pytest.mark.full
def test_replies_with_different_budgets_draft_together() -> None:
    budgets, settings = [0, 3, 9, 30], replace(GREEDY, max_tokens=50)
    alone = [reply(plain_engine("dense"), settings, each)[0] for each in budgets]
    engine = begin_engine("dense", max_seqs=4, planned_seqs=4)
    requests = [
        SequenceRequest(PROMPT, settings, constraint=ThoughtBudget(OpenThought(), each, [END]))
        for each in budgets
    ]
    asked = [Asked(engine, engine.add(each)) for each in requests]
    assert [each.finish() for each in asked] == alone

"""The dialogues that the demo model learns from, and the questions that it is asked."""

import re
from functools import cache

import pytest
from judge import is_right, load_cases

from demo_training.text.dialogues import dialogues
from demo_training.text.fit import Recipe
from demo_training.text.sums import TIMES

SUM = re.compile(r"^(-?\d+) (\S) (-?\d+) = \*\*(-?\d+)\*\*$")


def bare(text: str) -> str:
    """Lower case, without punctuation and doubled blanks."""
    return " ".join(re.sub(r"[^\w+*/\\-]", " ", text.lower()).split())


@cache
def trained_wordings() -> frozenset[str]:
    recipe = Recipe()
    chats = dialogues(recipe.seed, recipe.dialogues)
    return frozenset(bare(exchange.question) for chat in chats for exchange in chat.exchanges)


def test_enough_questions() -> None:
    questions, follow_ups = load_cases("questions"), load_cases("follow_ups")
    assert len(questions) >= 100
    assert sum(case.held_out for case in questions) >= 20
    assert len(follow_ups) >= 20
    assert all(len(case.turns) == 1 for case in questions)
    assert all(len(case.turns) == 2 for case in follow_ups)
    assert len({case.turns for case in questions + follow_ups}) == len(questions + follow_ups)


@pytest.mark.full
def test_held_out_wordings_are_not_trained_on() -> None:
    cases = load_cases("questions") + load_cases("follow_ups")
    trained = trained_wordings()
    assert [case.turns for case in cases if case.held_out and bare(case.turns[-1]) in trained] == []
    others = [case for case in cases if not case.held_out]
    assert sum(bare(case.turns[-1]) in trained for case in others) > 0.8 * len(others)


def test_dialogues_are_the_same_each_time() -> None:
    first, second = ([c.messages() for c in dialogues(5, 50)] for _ in range(2))
    assert first == second
    assert first != [c.messages() for c in dialogues(6, 50)]


def test_sums_are_right() -> None:
    sums = [
        found.groups()
        for chat in dialogues(11, 4000)
        for exchange in chat.exchanges
        if (found := SUM.match(exchange.answer))
    ]
    assert len(sums) > 1000
    results = {"+": int.__add__, "-": int.__sub__, TIMES: int.__mul__}
    wrong = [s for s in sums if results[s[1]](int(s[0]), int(s[2])) != int(s[3])]
    assert wrong == []


def test_judge() -> None:
    assert is_right("The capital is **Paris**.", ["paris"])
    assert is_right("Hi!", [["hello", "hi!"]])
    assert not is_right("10 + 7 = **17**", ["7 =", "27"])
    assert not is_right("17", ["7"])
    assert not is_right("-7", ["7"])
    assert is_right("3 + 4 = **7**", ["7"])

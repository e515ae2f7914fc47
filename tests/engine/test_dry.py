"""Repetitions are found where a search of every stretch of tokens finds them."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from mrs.engine.sampling.dry import RepetitionFinder
from mrs.engine.sampling.processors import processors_of
from mrs.engine.sampling.sampler import Sampler
from mrs.errors import UsageError
from mrs.request import Sampling


def by_definition(ids: list[int], breakers: set[int]) -> dict[int, int]:
    """For each token, the longest stretch that ends the text and stood before that token."""
    found: dict[int, int] = {}
    for length in range(1, len(ids)):
        ending = ids[-length:]
        if breakers & set(ending):
            break
        for start in range(len(ids) - length):
            if ids[start : start + length] == ending:
                found[ids[start + length]] = length
    return found


@pytest.mark.parametrize("seed", range(40))
def test_all_repetitions_are_found(seed: int) -> None:
    chance = random.Random(seed)
    breakers = frozenset(chance.sample(range(4), chance.randint(0, 2)))
    ids = [chance.randrange(5) for _ in range(chance.randint(1, 40))]
    finder = RepetitionFinder(ids[: len(ids) // 2], breakers)
    for token in ids[len(ids) // 2 :]:
        finder.add(token)
    assert finder.continuations() == by_definition(ids, set(breakers))


def test_nothing_repeats_at_the_start() -> None:
    assert RepetitionFinder([], frozenset()).continuations() == {}
    assert RepetitionFinder([3], frozenset()).continuations() == {}


def penalized(prompt: list[int], **settings: object) -> list[float]:
    sampling = Sampling(frequency_penalty=0, presence_penalty=0, **settings)
    logits = np.zeros(10, np.float32)
    for process in processors_of(sampling, prompt, 10, frozenset({9})):
        process(logits)
    return logits.tolist()


def test_the_penalty_grows_with_the_repetition() -> None:
    # 1 2 3 4 … 1 2 3: a 4 would make a repetition of three tokens longer.
    logits = penalized([1, 2, 3, 4, 5, 1, 2, 3], dry_multiplier=0.8)
    assert logits == pytest.approx([0, 0, 0, 0, -0.8 * 1.75, 0, 0, 0, 0, 0])
    logits = penalized([1, 2, 3, 4, 5, 2, 3], dry_multiplier=0.8, dry_base=3.0)
    assert logits[4] == pytest.approx(-0.8)
    assert penalized([3, 4, 5, 3], dry_multiplier=0.8) == [0] * 10
    assert penalized([3, 4, 5, 3], dry_multiplier=0.8, dry_allowed_length=1)[4] < 0
    assert penalized([1, 2, 3, 4, 5, 1, 2, 3]) == [0] * 10


def test_a_breaker_ends_a_repetition() -> None:
    settings = {"dry_multiplier": 1.0, "dry_base": 2.0, "dry_allowed_length": 1}
    assert penalized([1, 9, 3, 4, 5, 1, 9, 3], **settings)[4] == -1.0
    assert penalized([1, 9, 4, 1, 9], **settings) == [0] * 10


def test_a_long_repetition_stays_a_number() -> None:
    logits = penalized([1] * 3000, dry_multiplier=1e3, dry_base=1e3)
    assert -math.inf < logits[1] < -1e20
    sampling = Sampling(temperature=0, dry_multiplier=1e3, dry_base=1e9)
    sampler = Sampler(sampling, [1] * 3000, 10, random.Random())
    assert sampler(np.array([0.0, 5.0] + [0.0] * 8, np.float32)).id != 1


def test_a_bias_is_added() -> None:
    assert penalized([1], logit_bias=((2, 3.5), (4, -1.0))) == [0, 0, 3.5, 0, -1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("token", [-1, 10])
def test_a_bias_of_no_token_is_refused(token: int) -> None:
    with pytest.raises(UsageError, match=f"token {token}"):
        penalized([1], logit_bias=((token, 1.0),))


def test_logprobs_are_the_models_own() -> None:
    logits = torch.tensor([1.0, 3.0, 2.0, -1.0])
    sampling = Sampling(temperature=0, logprobs=2, logit_bias=((0, 100.0),))
    choice = Sampler(sampling, [1], 4, random.Random())(logits.numpy().copy())
    exact = logits.double().log_softmax(-1).tolist()
    assert choice.id == 0
    assert choice.logprob == pytest.approx(exact[0])
    assert [token for token, _ in choice.top] == [1, 2]
    assert [value for _, value in choice.top] == pytest.approx([exact[1], exact[2]])

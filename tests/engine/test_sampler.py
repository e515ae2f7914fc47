"""The sampler against hand-made distributions and transformers' own logits processors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from mrs.engine.sampling.candidates import probabilities
from mrs.engine.sampling.processors import RepetitionPenalty
from mrs.engine.sampling.sampler import Sampler
from mrs.errors import MrsError
from mrs.request import Sampling

PLAIN = Sampling(
    temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, frequency_penalty=0.0, presence_penalty=0.0
)


def sampler(
    sampling: Sampling, vocab: int, prompt: list[int] | None = None, seed: int = 0
) -> Callable[[Tensor], int]:
    choose = Sampler(sampling, prompt or [], vocab, Random(seed))
    return lambda logits: choose(logits.numpy().copy()).id


def frequencies(sampling: Sampling, logits: Tensor, draws: int) -> Tensor:
    choose = sampler(sampling, logits.shape[0])
    counts = Counter(choose(logits) for _ in range(draws))
    return torch.tensor([counts[i] / draws for i in range(logits.shape[0])])


def changed(**values: object) -> Sampling:
    from dataclasses import replace

    return replace(PLAIN, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sampling", "warpers"),
    [
        (PLAIN, []),
        (changed(temperature=0.5), [TemperatureLogitsWarper(0.5)]),
        (changed(top_k=3), [TopKLogitsWarper(3)]),
        (changed(top_p=0.6), [TopPLogitsWarper(0.6)]),
        (changed(min_p=0.3), [MinPLogitsWarper(0.3)]),
        (
            changed(temperature=2.0, top_k=5, top_p=0.8, min_p=0.2),
            [
                TemperatureLogitsWarper(2.0),
                TopKLogitsWarper(5),
                TopPLogitsWarper(0.8),
                MinPLogitsWarper(0.2),
            ],
        ),
    ],
)
def test_draws_follow_transformers_distribution(sampling: Sampling, warpers: list) -> None:  # type: ignore[type-arg]
    logits = torch.tensor([0.1, 2.0, -1.0, 1.5, 0.7, -3.0, 1.9])
    processed = LogitsProcessorList(warpers)(torch.zeros(1, 1, dtype=torch.long), logits[None])
    expected = processed[0].softmax(-1)
    found = frequencies(sampling, logits, 4000)
    assert (found[expected == 0] == 0).all()
    assert (found - expected).abs().max() < 0.03


@pytest.mark.few(2)
@pytest.mark.values
@pytest.mark.parametrize("spread", [0.2, 1.0, 8.0])
@pytest.mark.parametrize(
    ("sampling", "warpers"),
    [
        (PLAIN, []),
        (changed(top_k=400), [TopKLogitsWarper(400)]),
        (changed(top_p=0.5), [TopPLogitsWarper(0.5)]),
        (changed(min_p=0.2), [MinPLogitsWarper(0.2)]),
        (changed(top_p=0.9, min_p=0.01), [TopPLogitsWarper(0.9), MinPLogitsWarper(0.01)]),
    ],
)
def test_large_vocabularies(sampling: Sampling, warpers: list, spread: float) -> None:  # type: ignore[type-arg]
    """Whether few of the tokens hold what the filters leave, or many."""
    logits = torch.randn(3000, generator=torch.Generator().manual_seed(5)) * spread
    processed = LogitsProcessorList(warpers)(torch.zeros(1, 1, dtype=torch.long), logits[None])
    expected = processed[0].softmax(-1)
    found = frequencies(sampling, logits, 4000)
    assert (found[expected == 0] == 0).all()
    # By tenths of the expected distribution: single tokens are too rare.
    tenth = (expected.sort(descending=True).values.cumsum(0) * 9.999).long()
    order = expected.argsort(descending=True)
    sums = [torch.zeros(10).index_add(0, tenth, each[order]) for each in (expected, found)]
    assert (sums[0] - sums[1]).abs().max() < 0.03


@pytest.mark.full
def test_every_kept_token_is_drawn() -> None:
    """Of 3000, those that hold half of the probability are more than a first look finds."""
    logits = torch.linspace(0, -0.5, 3000)
    kept = int((logits.softmax(-1).cumsum(0) < 0.5).sum()) + 1
    choose = sampler(changed(top_p=0.5), 3000)
    drawn = {choose(logits) for _ in range(20_000)}
    assert max(drawn) < kept
    assert len(drawn) > 0.99 * kept > 1000


def test_probabilities_are_quotients_of_float32_as_on_devices() -> None:
    logits = np.linspace(-9, 5, 20_001, dtype=np.float32)
    expected = np.exp((logits - np.float32(5)) / np.float32(0.7))
    found = probabilities(logits.copy(), changed(temperature=0.7))
    assert np.array_equal(found, expected / np.float32(expected.sum(dtype=np.float64)))


def test_a_huge_temperature_makes_allowed_tokens_equally_likely() -> None:
    choose = sampler(changed(temperature=1e39), 3)
    assert {choose(torch.tensor([5.0, -math.inf, -5.0])) for _ in range(50)} == {0, 2}


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize(
    "sampling", [PLAIN, changed(top_k=2), changed(top_p=0.5), changed(temperature=0.0)]
)
def test_logits_that_are_no_numbers_are_refused(sampling: Sampling, broken: float) -> None:
    with pytest.raises(MrsError, match="no probabilities"):
        sampler(sampling, 3)(torch.tensor([0.0, broken, 1.0]))


@pytest.mark.parametrize("sampling", [PLAIN, changed(top_k=2), changed(top_p=0.5)])
def test_impossible_tokens_are_never_drawn(sampling: Sampling) -> None:
    logits = torch.full((600,), -math.inf)
    logits[[5, 400]] = torch.tensor([1.0, 1.5])
    choose = sampler(sampling, 600)
    assert {choose(logits) for _ in range(300)} <= {5, 400}


def test_temperature_zero_takes_the_largest() -> None:
    logits = torch.tensor([0.0, 5.0, 4.9])
    assert sampler(changed(temperature=0.0), 3)(logits) == 1


def test_repetition_penalty_counts_the_prompt_as_transformers_does() -> None:
    logits = torch.tensor([2.0, -1.0, 1.5, 0.2])
    prompt = [0, 1]
    penalized = RepetitionPenaltyLogitsProcessor(1.5)(torch.tensor([prompt]), logits[None])[0]
    choose = sampler(changed(temperature=0.0, repetition_penalty=1.5), 4, prompt)
    assert choose(logits) == int(penalized.argmax()) == 2


def test_frequency_and_presence_penalties_count_the_reply() -> None:
    logits = torch.tensor([1.0, 0.75, 0.0])
    choose = sampler(changed(temperature=0.0, presence_penalty=0.3), 3, prompt=[0, 0])
    assert [choose(logits) for _ in range(3)] == [0, 1, 0]
    choose = sampler(changed(temperature=0.0, frequency_penalty=0.2), 3)
    # 1.0, then 0.8, then 0.6 < 0.75, then 0.6 > 0.55.
    assert [choose(logits) for _ in range(4)] == [0, 0, 1, 0]


def test_a_seed_repeats() -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(3))
    first, again = (sampler(PLAIN, 50, seed=7) for _ in range(2))
    assert [first(logits) for _ in range(20)] == [again(logits) for _ in range(20)]


def test_filters_always_leave_a_token() -> None:
    logits = torch.tensor([1.0, 1.0, 1.0])
    assert sampler(changed(top_p=1e-9, min_p=1.0), 3)(logits) in (0, 1, 2)


def plain_draw(logits: np.ndarray, sampling: Sampling, rng: Random) -> int:
    """The same by sorting the whole vocabulary."""
    weights = np.exp((logits - logits.max()) / np.float32(sampling.temperature))
    ids = np.arange(len(weights))
    enough = sampling.top_p * weights.sum(dtype=np.float64)
    ids = ids[weights >= sampling.min_p]
    if sampling.top_p < 1:
        ids = ids[np.argsort(-weights[ids], kind="stable")]
        ids = ids[: 1 + weights[ids].cumsum(dtype=np.float64).searchsorted(enough)]
    sums = weights[ids].cumsum(dtype=np.float64)
    return int(ids[sums[:-1].searchsorted(rng.random() * sums[-1], side="right")])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("spread", [0.0, 0.3, 2.0, 9.0])
@pytest.mark.parametrize("size", [1, 7, 128, 700, 9000])
def test_draws_are_those_of_a_sorted_vocabulary(size: int, spread: float, tied: bool) -> None:
    chance, numbers = Random(size), np.random.default_rng(size)
    for seed in range(40):
        top_p, min_p = chance.choice([1.0, 0.95, 0.6, 0.01]), chance.choice([0.0, 0.02, 1.0])
        sampling = changed(temperature=chance.choice([0.7, 1.0]), top_p=top_p, min_p=min_p)
        logits = (numbers.standard_normal(size) * spread).astype(np.float32)
        if tied:
            logits = logits.round()
        expected = plain_draw(logits, sampling, Random(seed))
        drawn = Sampler(sampling, [], size, Random(seed))(logits.copy()).id
        assert drawn == expected, sampling


def test_rows_of_a_batch_do_not_touch_each_other() -> None:
    settings = [
        changed(temperature=0.0, repetition_penalty=1.3),
        changed(top_k=20, frequency_penalty=0.5),
        changed(top_p=0.9, dry_multiplier=0.8, logprobs=3),
        changed(min_p=0.1, presence_penalty=0.4, logit_bias=((5, 3.0),)),
        PLAIN,
    ]
    steps = np.random.default_rng(4).standard_normal((12, 5, 400), np.float32)

    def samplers() -> list[Sampler]:
        return [Sampler(each, [1, 2, 3], 400, Random(n)) for n, each in enumerate(settings)]

    alone = [[choose(step[n].copy()) for step in steps] for n, choose in enumerate(samplers())]
    together = samplers()
    for number, step in enumerate(steps):
        batch = step.copy()
        for n in (3, 0, 4, 2, 1):
            assert together[n](batch[n]) == alone[n][number]


@pytest.mark.parametrize("count", [0, 1, 3, 9])
def test_the_likeliest_tokens_are_named_lowest_first_where_equal(count: int) -> None:
    logits = np.array([0.0, 2.0, 1.0, 2.0, 1.0, -3.0], np.float32)
    token = Sampler(changed(temperature=0.0, logprobs=count), [], 6, Random(0))(logits.copy())
    assert [id for id, _ in token.top] == [1, 3, 2, 4, 0, 5][:count]
    exact = torch.tensor(logits).double().log_softmax(0)
    assert [value for _, value in token.top] == pytest.approx(exact[[1, 3, 2, 4, 0, 5]][:count])


def test_a_repetition_penalty_lowers_logits_of_both_signs() -> None:
    logits = np.array([3.0, -3.0, 3.0, -3.0], np.float32)
    penalty = RepetitionPenalty(2.0, [0, 1, 9], 4)
    penalty(logits)
    assert logits.tolist() == [1.5, -6.0, 3.0, -3.0]
    penalty.append(3)
    penalty(logits)
    assert logits.tolist() == [0.75, -12.0, 3.0, -6.0]

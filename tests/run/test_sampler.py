"""The sampler against hand-made distributions and transformers' own logits processors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

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

from mrs.request import Sampling
from mrs.run.sampler import Sampler

CPU = torch.device("cpu")
PLAIN = Sampling(
    temperature=1.0, top_k=None, top_p=1.0, min_p=0.0, frequency_penalty=0.0, presence_penalty=0.0
)


def sampler(
    sampling: Sampling, vocab: int, prompt: list[int] | None = None, seed: int = 0
) -> Callable[[Tensor], int]:
    generator = torch.Generator().manual_seed(seed)
    choose = Sampler(sampling, prompt or [], vocab, CPU, generator)
    return lambda logits: choose(logits).token


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

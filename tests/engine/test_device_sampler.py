"""The sampler for devices chooses what the one for the host chooses."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from torch import Tensor

from mrs.engine.sampling.candidates import probabilities
from mrs.engine.sampling.on_device import DeviceSampler, is_supported, row_values
from mrs.engine.sampling.sampler import Sampler
from mrs.request import Sampling

VOCABULARY, ROWS = 64, 11  # more rows than are sorted at once
CPU = torch.device("cpu")
PLAIN = Sampling(
    temperature=1.0, top_k=0, top_p=0.9, min_p=0.0, frequency_penalty=0, presence_penalty=0
)
GREEDY = replace(PLAIN, temperature=0.0)
SETTINGS = {
    "default": Sampling(),
    "greedy": GREEDY,
    "repetitions": Sampling(temperature=0.0, repetition_penalty=1.3),
    "top p": PLAIN,
    "no filter": replace(PLAIN, top_p=1.0),
    "top k": replace(PLAIN, top_k=5, top_p=1.0),
    "top k and p": replace(PLAIN, top_k=5, top_p=0.999),
    "min p": replace(PLAIN, min_p=0.2),
    "min p alone": replace(PLAIN, min_p=0.05, top_p=1.0),
    "all": replace(PLAIN, top_k=20, min_p=0.02, repetition_penalty=1.2, frequency_penalty=0.3),
    "cold": replace(PLAIN, temperature=1e-30),
}


def values_of(sampling: Sampling, uniform: list[float]) -> Tensor:
    rows = [[*row_values(sampling, Random(0))[:-1], each] for each in uniform]
    return torch.tensor(rows, dtype=torch.float64).T


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_same_tokens_as_on_the_host(settings: Sampling) -> None:
    """With the same random numbers, prompts and earlier tokens; the rows differ."""
    chance = torch.Generator().manual_seed(3)
    prompts = [[1, 5, 70], [2], [3, 3, 9]] * ROWS
    device = DeviceSampler(ROWS + 2, VOCABULARY, CPU)
    hosts = [Sampler(settings, prompts[n], VOCABULARY, Random(n)) for n in range(ROWS)]
    rngs = [Random(n) for n in range(ROWS)]
    for row in range(ROWS):
        device.begin(row, prompts[row], [])
    for _ in range(12):
        logits = 2 * torch.randn(ROWS, VOCABULARY, generator=chance)
        expected = [host(row.copy()).id for host, row in zip(hosts, logits.numpy(), strict=True)]
        rows = [row_values(settings, rng) for rng in rngs]
        values = torch.tensor(rows, dtype=torch.float64).T
        assert device(logits, values).tolist() == expected


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_tokens_have_their_probabilities(settings: Sampling) -> None:
    """Exactly: of evenly spaced random numbers each token gets its share, within one of them."""
    count = 400
    logits = torch.randn(1, 32, generator=torch.Generator().manual_seed(1))
    plain = replace(settings, repetition_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0)
    uniform = [(n + 0.5) / count for n in range(count)]
    sampler = DeviceSampler(count, 32, CPU)
    tokens = sampler(logits.expand(count, -1), values_of(plain, uniform))
    if plain.temperature == 0:
        assert tokens.tolist() == [int(logits.argmax())] * count
        return
    shares = np.bincount(tokens.numpy(), minlength=32) / count
    expected = probabilities(logits[0].numpy().copy(), plain)
    assert np.abs(shares - expected).max() <= 1.01 / count


def test_rows_without_a_sequence_change_nothing() -> None:
    chance = torch.Generator().manual_seed(4)
    sampler = DeviceSampler(16, VOCABULARY, CPU)
    logits = torch.randn(16, VOCABULARY, generator=chance)
    uniform = [n / 16 for n in range(16)]
    whole = sampler(logits, values_of(PLAIN, uniform)).tolist()
    assert sampler(logits[:4], values_of(PLAIN, uniform[:4])).tolist() == whole[:4]


def test_a_row_can_go_on_with_another_sequence() -> None:
    sampler = DeviceSampler(1, 4, CPU)
    values = values_of(replace(GREEDY, frequency_penalty=1.0), [0.0])
    logits = torch.tensor([[0.0, 2.5, 2.0, 1.0]])
    replies: tuple[list[int], ...] = ([], [1], [1, 2])
    chosen = []
    for reply in replies:
        sampler.begin(0, [0], reply)
        chosen.append(int(sampler(logits, values)))
    assert chosen == [1, 2, 1]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite(value: float) -> None:
    sampler = DeviceSampler(2, 4, CPU)
    logits = torch.zeros(2, 4)
    logits[1, 2] = value
    first, second = sampler(logits, values_of(PLAIN, [0.5, 0.5])).tolist()
    assert first >= 0
    assert second == -1


def test_impossible_tokens_are_never_chosen() -> None:
    logits = torch.full((3, 4), float("-inf"))
    logits[:, 2] = -5.0
    tokens = DeviceSampler(3, 4, CPU)(logits, values_of(PLAIN, [0.0, 0.5, 1 - 2**-53]))
    assert tokens.tolist() == [2, 2, 2]


def test_what_only_the_host_can() -> None:
    assert is_supported(Sampling())
    assert not is_supported(Sampling(logprobs=0))
    assert not is_supported(Sampling(logit_bias=((1, 1.0),)))
    assert not is_supported(Sampling(dry_multiplier=0.8))

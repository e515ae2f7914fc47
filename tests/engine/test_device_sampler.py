"""The sampler for devices chooses what the one for the CPU chooses."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch

from mrs.engine.sampling.on_device import DeviceSampler, is_supported
from mrs.engine.sampling.sampler import Sampler
from mrs.request import Sampling

VOCABULARY, ROWS = 64, 3
CPU = torch.device("cpu")
PLAIN = Sampling(
    temperature=1.0, top_k=0, top_p=0.9, min_p=0.0, frequency_penalty=0, presence_penalty=0
)
SETTINGS = {
    "default": Sampling(),
    "greedy": replace(PLAIN, temperature=0.0),
    "penalties alone": Sampling(temperature=0.0, repetition_penalty=1.3),
    "top p": PLAIN,
    "top k": replace(PLAIN, top_k=5, top_p=0.999),
    "min p": replace(PLAIN, min_p=0.2),
    "all": replace(PLAIN, top_k=20, min_p=0.02, repetition_penalty=1.2, frequency_penalty=0.3),
    "cold": replace(PLAIN, temperature=1e-30),
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_same_tokens_as_on_the_cpu(settings: Sampling) -> None:
    """Row by row, with what was chosen before and the prompt's tokens."""
    chance = torch.Generator().manual_seed(3)
    prompts = [[1, 5, 70], [2], [3, 3, 9]]
    device = DeviceSampler(ROWS, VOCABULARY, CPU)
    hosts = [Sampler(settings, ids, VOCABULARY, Random(n)) for n, ids in enumerate(prompts)]
    for row, ids in enumerate(prompts):
        device.begin(row, ids)
    rngs = [Random(n) for n in range(ROWS)]
    for _ in range(12):
        logits = 2 * torch.randn(ROWS, VOCABULARY, generator=chance)
        expected = [host(row.copy()).id for host, row in zip(hosts, logits.numpy(), strict=True)]
        device.set([settings] * ROWS, rngs)
        assert device(logits).tolist() == expected


def test_without_top_p_tokens_have_their_probabilities() -> None:
    """The CPU draws in the order of tokens then, and a device in that of their weights."""
    rows = 4000
    sampler = DeviceSampler(rows, 4, CPU)
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    sampler.set([replace(PLAIN, top_p=1.0)] * rows, [Random(n) for n in range(rows)])
    counts = Counter(sampler(logits.expand(rows, -1)).tolist())
    shares = np.array([counts[token] for token in range(4)]) / rows
    assert abs(shares - [0.1, 0.2, 0.3, 0.4]).max() < 0.03


def test_a_row_can_go_on_with_another_sequence() -> None:
    sampler = DeviceSampler(1, 4, CPU)
    greedy = replace(PLAIN, temperature=0.0, frequency_penalty=1.0)
    logits = torch.tensor([[0.0, 2.5, 2.0, 1.0]])
    chosen = []
    for reply in ([], [1], [1, 2]):
        sampler.begin(0, [0], reply)
        sampler.set([greedy], [Random(0)])
        chosen.append(int(sampler(logits)))
    assert chosen == [1, 2, 1]


def test_logits_that_are_not_numbers() -> None:
    sampler = DeviceSampler(2, 4, CPU)
    sampler.set([PLAIN] * 2, [Random(0)] * 2)
    logits = torch.zeros(2, 4)
    logits[1] = float("nan")
    tokens = sampler(logits).tolist()
    assert tokens[0] >= 0
    assert tokens[1] == -1


def test_what_only_the_cpu_can() -> None:
    assert is_supported(Sampling())
    assert not is_supported(Sampling(logprobs=0))
    assert not is_supported(Sampling(logit_bias=((1, 1.0),)))
    assert not is_supported(Sampling(dry_multiplier=0.8))

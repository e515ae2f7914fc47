"""Typical-p, top-n-sigma and XTC against their published definitions, computed in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import TopKLogitsWarper, TypicalLogitsWarper

from mrs.engine.sampling.candidates import probabilities, sample_token
from mrs.engine.sampling.on_device import _SETTINGS, is_supported
from mrs.engine.sampling.processors import processors_of
from mrs.request import Sampling
from mrs.request.sampling import SETTINGS

Wide = npt.NDArray[np.float64]
PLAIN = Sampling(temperature=1.0)


def softmax(logits: Wide) -> Wide:
    weights = np.exp(logits - logits.max())
    shares: Wide = weights / weights.sum()
    return shares


def top_n_sigma(logits: Wide, count: float) -> Wide:
    finite = logits[np.isfinite(logits)]
    return softmax(np.where(logits >= finite.max() - count * finite.std(), logits, -np.inf))


def typical(logits: Wide, mass: float) -> Wide:
    """The smallest set of tokens whose surprise is nearest to the entropy, with this mass."""
    shares = softmax(logits)
    entropy = -sum(p * np.log(p) for p in shares)
    order = sorted(range(len(shares)), key=lambda i: abs(-np.log(shares[i]) - entropy))
    kept, total = [], 0.0
    for token in order:
        kept.append(token)
        total += shares[token]
        if total >= mass:
            break
    found = np.zeros_like(shares)
    found[kept] = shares[kept]
    return found / found.sum()


def xtc(logits: Wide, chance: float, threshold: float) -> Wide:
    shares = softmax(logits)
    above = [token for token in range(len(shares)) if shares[token] >= threshold]
    removed = sorted(above, key=lambda token: shares[token])[1:]
    without = shares.copy()
    without[removed] = 0
    return (1 - chance) * shares + chance * without / without.sum()


CASES: list[tuple[Sampling, Callable[[Wide], Wide]]] = [
    *((replace(PLAIN, top_n_sigma=n), lambda x, n=n: top_n_sigma(x, n)) for n in (0.5, 1.0, 2.0)),
    *((replace(PLAIN, typical_p=p), lambda x, p=p: typical(x, p)) for p in (0.1, 0.5, 0.9, 0.999)),
    *(
        (
            replace(PLAIN, xtc_probability=chance, xtc_threshold=least),
            lambda x, c=chance, t=least: xtc(x, c, t),
        )
        for chance, least in ((1.0, 0.05), (0.5, 0.1), (0.3, 0.02), (1.0, 0.6))
    ),
]


@pytest.mark.parametrize("spread", [0.3, 1.0, 4.0])
@pytest.mark.parametrize(("sampling", "expected"), CASES)
def test_filters_are_those_of_their_papers(
    sampling: Sampling, expected: Callable[[Wide], Wide], spread: float
) -> None:
    for seed in range(5):
        logits = spread * np.random.default_rng(seed).standard_normal(97).astype(np.float32)
        found = probabilities(logits.copy(), sampling)
        wanted = expected(logits.astype(np.float64))
        assert np.abs(found - wanted).max() < 1e-6


@pytest.mark.few(5)
@pytest.mark.parametrize(("sampling", "expected"), CASES)
def test_draws_have_these_probabilities(
    sampling: Sampling, expected: Callable[[Wide], Wide]
) -> None:
    logits = np.array([0.1, 2.0, -1.0, 1.5, 0.7, -3.0, 1.9], np.float32)
    rng = Random(5)
    drawn = [sample_token(logits.copy(), sampling, rng) for _ in range(4000)]
    shares = np.bincount(drawn, minlength=7) / 4000
    wanted = expected(logits.astype(np.float64))
    assert np.abs(shares - wanted).max() < 0.03
    assert (shares[wanted == 0] == 0).all()


@pytest.mark.parametrize("mass", [0.2, 0.5, 0.9])
def test_typical_p_is_that_of_transformers(mass: float) -> None:
    logits = torch.randn(1, 211, generator=torch.Generator().manual_seed(1)) * 2
    for top_k in (0, 20):
        scores = TopKLogitsWarper(top_k)(None, logits) if top_k else logits  # type: ignore[arg-type]
        expected = TypicalLogitsWarper(mass=mass)(None, scores)[0].softmax(-1)  # type: ignore[arg-type]
        sampling = replace(PLAIN, typical_p=mass, top_k=top_k)
        found = probabilities(logits[0].numpy().copy(), sampling)
        assert np.abs(found - expected.numpy()).max() < 1e-6


def test_sigma_does_not_count_what_a_grammar_forbids() -> None:
    logits = np.array([1.0, 0.8, 0.2, -1.0], np.float32)
    alone = probabilities(logits.copy(), replace(PLAIN, top_n_sigma=1.0))
    masked = np.append(logits, np.full(50, -np.inf, np.float32))
    found = probabilities(masked, replace(PLAIN, top_n_sigma=1.0))
    assert np.abs(found[:4] - alone).max() < 1e-7
    assert not found[4:].any()


def test_top_k_of_minus_one_is_off() -> None:
    logits = np.array([1.0, 0.8, 0.2, -1.0], np.float32)
    every = probabilities(logits.copy(), PLAIN)
    assert (probabilities(logits.copy(), replace(PLAIN, top_k=-1)) == every).all()


def test_a_reply_does_not_end_before_its_least_tokens() -> None:
    sampling = Sampling(temperature=0, min_tokens=2)
    (process,) = processors_of(sampling, [1], 4, frozenset(), frozenset({2, 70}))
    ends = []
    for token in (0, 1, 3):
        logits = np.array([0, 1, 9, 2], np.float32)
        process(logits)
        ends.append(bool(np.isfinite(logits[2])))
        process.append(token)
    assert ends == [False, False, True]


ACTING = {
    "min_p": 0.1, "top_k": 3, "top_p": 0.5, "repetition_penalty": 1.1, "frequency_penalty": 0.1,
    "presence_penalty": 0.1, "typical_p": 0.5, "top_n_sigma": 1.0, "xtc_probability": 0.5,
    "min_tokens": 2, "dry_multiplier": 0.8, "logit_bias": ((1, 1.0),),
}  # fmt: skip


def test_a_device_leaves_every_setting_that_it_does_not_know_to_the_host() -> None:
    shaping = {name for name, setting in SETTINGS.items() if setting.off is not None}
    assert shaping == set(ACTING)
    known = {each.name for each in fields(Sampling)} & set(_SETTINGS)
    for name, value in ACTING.items():
        assert is_supported(replace(Sampling(), **{name: value})) == (name in known)

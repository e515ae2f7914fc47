"""Means, quantiles and their standard errors, against other ways to find them."""

from __future__ import annotations

import numpy as np
import pytest

from mrs.run.evaluation.summary import divergence, mean, perplexity, quantiles


def correlated(windows: int, positions: int, seed: int = 0) -> np.ndarray:
    """Values of which each window has a level of its own."""
    chance = np.random.default_rng(seed)
    return chance.normal(size=(windows, 1)) + 0.1 * chance.normal(size=(windows, positions))


def test_the_error_of_a_mean_is_that_between_windows() -> None:
    """So it is what means of other texts differ by, which positions alone would make too small."""
    means = [mean(correlated(20, 50, seed)).value for seed in range(400)]
    errors = [mean(correlated(20, 50, seed)).error or 0.0 for seed in range(400)]
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.1)
    naive = np.std(correlated(20, 50)) / np.sqrt(20 * 50)
    assert np.mean(errors) > 5 * naive


def test_quantiles_are_those_of_all_values_with_errors_between_windows() -> None:
    values = correlated(30, 41)
    median, high = quantiles(values, (0.5, 0.99))
    assert median.value == np.quantile(values, 0.5, method="inverted_cdf")
    assert high.value == np.quantile(values, 0.99, method="inverted_cdf")
    spread = np.std([quantiles(correlated(30, 41, s), (0.5,))[0].value for s in range(200)])
    errors = [quantiles(correlated(30, 41, s), (0.5,))[0].error or 0.0 for s in range(20)]
    assert np.mean(errors) == pytest.approx(spread, rel=0.3)


def test_one_window_has_no_error() -> None:
    assert mean(correlated(1, 9)).error is None
    assert quantiles(correlated(1, 9), (0.5,))[0].error is None


def test_perplexity_and_its_change_are_of_all_positions() -> None:
    losses = np.array([[1.0, 2.0], [3.0, 6.0]])
    assert perplexity(losses).value == pytest.approx(np.exp(3))
    values = np.stack([losses, losses - 0.1, np.zeros((2, 2)), np.ones((2, 2))], -1)
    found = divergence(values)
    assert found.change.value == pytest.approx(np.exp(0.1) - 1)
    assert found.change.error == pytest.approx(0, abs=1e-12)  # the texts' own spread cancels
    assert found.same == (1.0, 0.0)

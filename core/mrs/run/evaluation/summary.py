"""Figures of an evaluation with their standard errors.

Positions of one window are not independent, as they share a context. So each error comes of the
differences between windows: of means by their variance, of quantiles by the bootstrap of Efron
(1979), which draws whole windows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
#: Draws of the bootstrap, and the seed that makes the same figures of the same values.
DRAWS, SEED = 200, 20260101
#: Columns of the values of a position: minus the log-probability of the next token, that of the
#: reference, the divergence from it in nats, and whether the most likely tokens are the same.
LOSS, REFERENCE_LOSS, DIVERGENCE, SAME = range(4)


class Figure(NamedTuple):
    """A figure and its standard error, which one window alone does not give."""

    value: float
    error: float | None

    def scaled(self, factor: float) -> Figure:
        return Figure(self.value * factor, None if self.error is None else self.error * factor)


class Divergence(NamedTuple):
    """The divergence of a model from the reference over all positions, in nats.

    `change` is the share by which perplexity is higher, `same` how often the most likely token is
    that of the reference.
    """

    mean: Figure
    median: Figure
    percentile_90: Figure
    percentile_99: Figure
    most: float
    same: Figure
    change: Figure


def mean(values: Array) -> Figure:
    """The mean of values (windows, positions)."""
    means = values.mean(1)
    count = len(means)
    return Figure(float(means.mean()), float(means.std(ddof=1) / count**0.5) if count > 1 else None)


def perplexity(losses: Array) -> Figure:
    """Of minus log-probabilities (windows, positions)."""
    loss = mean(losses)
    value = float(np.exp(loss.value))
    return Figure(value, None if loss.error is None else value * loss.error)


def divergence(values: Array) -> Divergence:
    """Of values (windows, positions, 4)."""
    found = values[..., DIVERGENCE]
    median, high, highest = quantiles(found, (0.5, 0.9, 0.99))
    ratio = perplexity(values[..., LOSS] - values[..., REFERENCE_LOSS])
    return Divergence(
        mean(found),
        median,
        high,
        highest,
        float(found.max()),
        mean(values[..., SAME]),
        Figure(ratio.value - 1, ratio.error),
    )


def quantiles(values: Array, shares: tuple[float, ...]) -> list[Figure]:
    """The values that these shares of all values (windows, positions) do not exceed."""
    windows, positions = values.shape
    order = values.ravel().argsort()
    ordered, window = values.ravel()[order], order // positions

    def at(weights: npt.NDArray[np.int64]) -> Array:
        """The quantiles where each window counts as often as `weights` says."""
        counts = weights[window].cumsum()
        places = counts.searchsorted(np.ceil(np.array(shares) * counts[-1]))
        chosen: Array = ordered[places]
        return chosen

    found = at(np.ones(windows, np.int64))
    errors: list[float | None] = [None] * len(shares)
    if windows > 1:
        generator = np.random.default_rng(SEED)
        draws = generator.multinomial(windows, np.full(windows, 1 / windows), DRAWS)
        errors = list(np.std([at(draw) for draw in draws], axis=0, ddof=1).tolist())
    return [Figure(float(value), error) for value, error in zip(found, errors, strict=True)]

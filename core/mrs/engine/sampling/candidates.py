"""Draws a token after temperature, top-k, min-p and top-p."""

from __future__ import annotations

import math
from random import Random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mrs.engine.sampling.processors import FloatArray
from mrs.engine.sampling.weight_sums import SortedWeightSums, WeightSums
from mrs.errors import ExitCode, MrsError
from mrs.request import Sampling

#: Between these, quotients of float32 stay finite. Below them the likeliest token is drawn in any
#: case, and above them all tokens are equally likely.
TEMPERATURES = 1e-20, 1e30


class NoProbabilities(MrsError):
    """The logits are not numbers: weights are damaged, or values exceed the dtype."""

    exit_code = ExitCode.UNSUPPORTED

    def __init__(self) -> None:
        super().__init__(
            "the model gives no probabilities", hint="try another --dtype, such as f32"
        )


class Candidates(NamedTuple):
    """Tokens' `weights` (C,): probabilities, of which the likeliest has 1.

    Their `ids` (C,) are None for the whole vocabulary: weights are in the order of tokens then.
    """

    weights: FloatArray
    ids: npt.NDArray[np.intp] | None = None

    def where(self, is_kept: npt.NDArray[np.bool_]) -> Candidates:
        kept = np.flatnonzero(is_kept)
        return Candidates(self.weights[kept], kept if self.ids is None else self.ids[kept])

    def token(self, index: int) -> int:
        return index if self.ids is None else int(self.ids[index])


def likeliest_token(logits: FloatArray) -> int:
    """The first of the tokens with the largest logit (V,). Raises NoProbabilities."""
    token = int(logits.argmax())  # NaN counts as the largest
    if not math.isfinite(logits[token]):
        raise NoProbabilities
    return token


def sample_token(logits: FloatArray, sampling: Sampling, rng: Random) -> int:
    """The next token after logits (V,), which are overwritten, at a temperature above 0.

    Top-p and min-p look at the probabilities among the tokens that top-k leaves. Raises
    NoProbabilities.
    """
    if sampling.xtc_probability:
        shares = _shares(logits, sampling)
        if rng.random() < sampling.xtc_probability:
            shares = _without_top_choices(shares, sampling.xtc_threshold)
        return draw(shares, rng)
    candidates, sums, _, kept = _kept(logits, sampling)
    drawn, _ = sums.search(rng.random() * kept, "right")
    return candidates.token(drawn)


def probabilities(logits: FloatArray, sampling: Sampling) -> FloatArray:
    """The probability (V,) of each token after logits (V,), with which `sample_token` draws it."""
    shares, chance = _shares(logits, sampling), np.float32(sampling.xtc_probability)
    if not chance:
        return shares
    others = _without_top_choices(shares, sampling.xtc_threshold)
    mixed: FloatArray = (1 - chance) * shares + chance * (others / others.sum())
    return mixed


def _shares(logits: FloatArray, sampling: Sampling) -> FloatArray:
    """The probability (V,) of each token before XTC."""
    size = len(logits)
    candidates, _, last, kept = _kept(logits, sampling)
    weights = candidates.weights
    if last is not None:
        is_before = np.arange(len(weights)) <= last
        is_kept = (weights > weights[last]) | ((weights == weights[last]) & is_before)
        weights = np.where(is_kept, weights, np.float32(0))
    found = np.zeros(size, np.float32)
    found[slice(None) if candidates.ids is None else candidates.ids] = weights / np.float32(kept)
    return found


def draw(weights: FloatArray, rng: Random) -> int:
    """An index of weights (C,), drawn in proportion to them."""
    sums = WeightSums(weights)
    return sums.search(rng.random() * sums.total, "right")[0]


def _kept(
    logits: FloatArray, sampling: Sampling
) -> tuple[Candidates, WeightSums | SortedWeightSums, int | None, float]:
    """Candidates, their sums, the last one in the order of sums that is kept, and their sum.

    None is the last one if all candidates are kept.
    """
    if sampling.top_n_sigma > 0:
        _drop_below_sigma(logits, sampling.top_n_sigma)
    candidates = _likeliest(logits, sampling.temperature, sampling.top_k)
    if sampling.typical_p < 1:
        candidates = _typical(candidates, sampling.typical_p)
    if sampling.top_p >= 1:
        candidates = _min_p(candidates, sampling.min_p)
        all_sums = WeightSums(candidates.weights)
        return candidates, all_sums, None, all_sums.total
    total = float(candidates.weights.sum(dtype=np.float64))
    least = (1 - sampling.top_p) * total / len(candidates.weights)
    candidates = _without_light(_min_p(candidates, sampling.min_p), least)
    sums = SortedWeightSums(candidates.weights)
    last, kept = sums.search(sampling.top_p * total, "left")
    return candidates, sums, last, kept


def _likeliest(logits: FloatArray, temperature: float, top_k: int) -> Candidates:
    """The `top_k` likeliest tokens, or all, in the order of tokens."""
    largest = float(logits.max())
    if not math.isfinite(largest):
        raise NoProbabilities
    others = len(logits) - top_k if top_k > 0 else 0
    ids = np.sort(np.argpartition(logits, others)[others:]) if others > 0 else None
    weights = (logits if ids is None else logits[ids]) - np.float32(largest)
    least, most = TEMPERATURES
    weights /= np.float32(min(max(temperature, least), most))
    return Candidates(np.exp(weights, out=weights), ids)


def _drop_below_sigma(logits: FloatArray, count: float) -> None:
    """Make logits (V,) more than `count` standard deviations below the largest impossible.

    Tokens that are impossible already do not count. Source: Tang et al., "Top-nσ: Not All Logits
    Are You Need" (arXiv 2411.07641), section 3.
    """  # noqa: RUF002
    finite = logits[np.isfinite(logits)].astype(np.float64)
    largest = float(logits.max())
    if math.isfinite(largest):
        logits[logits < largest - count * finite.std()] = -np.inf


def _typical(candidates: Candidates, mass: float) -> Candidates:
    """Candidates whose surprise is nearest to its expectation, with this share of probability.

    Source: Meister et al., "Locally Typical Sampling" (arXiv 2202.00666), equation 9.
    """
    shares = candidates.weights.astype(np.float64)
    shares /= shares.sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        surprise = -np.log(shares)
        expected = np.where(shares > 0, shares * surprise, 0).sum()
    order = np.argsort(np.abs(surprise - expected), kind="stable")
    count = int(np.searchsorted(shares[order].cumsum(), mass)) + 1
    is_kept = np.zeros(len(shares), np.bool_)
    is_kept[order[:count]] = True
    kept = candidates.where(is_kept)
    return kept._replace(weights=kept.weights / kept.weights.max())


def _without_top_choices(shares: FloatArray, threshold: float) -> FloatArray:
    """Shares (V,) without the tokens of at least `threshold`, but for the least likely of these.

    Source: p-e-w's "Exclude Top Choices" sampler, 2024.
    """
    above = np.flatnonzero((shares >= threshold) & (shares > 0))
    if len(above) < 2:
        return shares
    others = shares.copy()
    others[above] = 0
    last = above[np.argmin(shares[above])]
    others[last] = shares[last]
    return others


def _min_p(candidates: Candidates, min_p: float) -> Candidates:
    """Candidates with at least `min_p` times the probability of the likeliest."""
    if min_p <= 0:
        return candidates
    return candidates.where(candidates.weights >= min(min_p, 1.0))


def _without_light(candidates: Candidates, least: float) -> Candidates:
    """Candidates that weigh at least `least`, or all if most do.

    `least` is the weight that top-p leaves out, divided by the number of all candidates. So the
    lighter ones weigh less than that together, and top-p never reaches them.
    """
    is_kept = candidates.weights >= min(least, 1.0)
    is_worth_it = 4 * np.count_nonzero(is_kept) < len(is_kept)
    return candidates.where(is_kept) if is_worth_it else candidates

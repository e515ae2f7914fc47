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
    candidates, sums, _, kept = _kept(logits, sampling)
    drawn, _ = sums.search(rng.random() * kept, "right")
    return candidates.token(drawn)


def probabilities(logits: FloatArray, sampling: Sampling) -> FloatArray:
    """The probability (V,) of each token after logits (V,), with which `sample_token` draws it."""
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
    candidates = _likeliest(logits, sampling.temperature, sampling.top_k)
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

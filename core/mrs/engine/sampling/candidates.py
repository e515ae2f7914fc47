"""The tokens that may be drawn: temperature and top-k make them, min-p and top-p leave fewer."""

from __future__ import annotations

import math
from random import Random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mrs.engine.sampling.processors import FloatArray
from mrs.errors import MrsError
from mrs.request import Sampling

#: Below this the likeliest token is drawn in any case, and quotients stay finite.
_LEAST_TEMPERATURE = 1e-20


class Candidates(NamedTuple):
    """Tokens `ids` (C,) and their `weights` (C,): probabilities, of which the likeliest has 1."""

    ids: npt.NDArray[np.intp]
    weights: FloatArray

    def where(self, kept: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Candidates:
        return Candidates(self.ids[kept], self.weights[kept])


def sample_token(logits: FloatArray, sampling: Sampling, rng: Random) -> int:
    """The next token after logits (V,), at a temperature above 0.

    Top-p and min-p look at the probabilities among the tokens that top-k leaves. Raises MrsError
    if the logits are not numbers.
    """
    candidates = _likeliest(logits, sampling.temperature, sampling.top_k)
    total = float(candidates.weights.sum(dtype=np.float64))
    least = (1 - sampling.top_p) * total / len(candidates.weights)
    if sampling.min_p > 0:
        candidates = _min_p(candidates, sampling.min_p)
    if sampling.top_p < 1:
        candidates = _top_p(candidates, sampling.top_p * total, least)
    ends = candidates.weights.cumsum(dtype=np.float64)
    drawn = ends[:-1].searchsorted(rng.random() * ends[-1], side="right")
    return int(candidates.ids[drawn])


def _likeliest(logits: FloatArray, temperature: float, top_k: int | None) -> Candidates:
    """The `top_k` likeliest tokens in any order, or all."""
    largest = float(logits.max())
    if not math.isfinite(largest):
        raise MrsError("the model gives no probabilities", hint="try another --dtype, such as f32")
    others = len(logits) - (top_k or len(logits))
    ids = np.argpartition(logits, others)[others:] if others > 0 else np.arange(len(logits))
    kept = logits[ids] if others > 0 else logits
    weights = (kept - largest) / max(temperature, _LEAST_TEMPERATURE)
    return Candidates(ids, np.exp(weights, out=weights))


def _min_p(candidates: Candidates, min_p: float) -> Candidates:
    """Those that have at least `min_p` times the probability of the likeliest."""
    return candidates.where(candidates.weights >= min(min_p, 1.0))


def _top_p(candidates: Candidates, enough: float, least: float) -> Candidates:
    """The likeliest, whose weights come to `enough` together, sorted.

    All that weigh less than `least` have less together than what is left out: there is no need to
    sort them.
    """
    candidates = candidates.where(candidates.weights >= min(least, 1.0))
    order = np.argsort(-candidates.weights)
    sums = candidates.weights[order].cumsum(dtype=np.float64)
    return candidates.where(order[: 1 + int(sums.searchsorted(enough))])

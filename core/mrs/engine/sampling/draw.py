"""Draw a token by its likelihood, among those that top-k, top-p and min-p leave."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import numpy.typing as npt

from mrs.errors import MrsError
from mrs.request import Sampling

Numbers = npt.NDArray[np.float32]

#: Below this the likeliest token is drawn in any case, and quotients stay finite.
_LEAST_TEMPERATURE = 1e-20


def draw(logits: Numbers, sampling: Sampling, chances: Random) -> int:
    """The next token after logits (V,), at a temperature above 0.

    Top-p and min-p look at the probabilities among the tokens that top-k leaves. Raises MrsError
    where the logits are no numbers.
    """
    largest = float(logits.max())
    if not math.isfinite(largest):
        raise MrsError("the model gives no probabilities", hint="try another --dtype, such as f32")
    ids = _largest(logits, sampling.top_k or len(logits))
    weights = np.exp((logits[ids] - largest) / max(sampling.temperature, _LEAST_TEMPERATURE))
    total = float(weights.sum(dtype=np.float64))
    # All that weigh less than the second of these hold less than what top-p leaves out: there is
    # no need to sort them.
    least = max(sampling.min_p, (1 - sampling.top_p) * total / len(weights))
    if least > 0:
        inside = weights >= min(least, 1.0)
        ids, weights = ids[inside], weights[inside]
    if sampling.top_p < 1:
        order = np.argsort(-weights)
        sums = weights[order].cumsum(dtype=np.float64)
        order = order[: 1 + int(sums.searchsorted(sampling.top_p * total))]
        ids, weights = ids[order], weights[order]
    ends = weights.cumsum(dtype=np.float64)
    return int(ids[ends[:-1].searchsorted(chances.random() * ends[-1], side="right")])


def _largest(logits: Numbers, count: int) -> npt.NDArray[np.intp]:
    """The places of the `count` largest, in any order."""
    others = len(logits) - count
    if others <= 0:
        return np.arange(len(logits))
    return np.argpartition(logits, others)[others:]

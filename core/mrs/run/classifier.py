"""Says to which class a text belongs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mrs.architecture.pooler import Pooler


class Classified(NamedTuple):
    """The class that fits a text of `tokens` tokens best, and how well each of all classes does.

    Probabilities are by the names of classes, in the model's order: those of classes that exclude
    each other have the sum 1. Of a model for a regression they are the numbers that it gives.
    """

    label: str
    probabilities: dict[str, float]
    tokens: int


def classified(pooler: Pooler, scores: Sequence[float], tokens: int) -> Classified:
    """What the scores of a text say."""
    values = np.array(scores, np.float64)
    if pooler.scale == "softmax":
        powers = np.exp(values - values.max())
        values = powers / powers.sum()
    elif pooler.scale == "sigmoid":
        values = 0.5 * (1 + np.tanh(values / 2))
    by_label = dict(zip(pooler.labels, values.tolist(), strict=True))
    return Classified(pooler.labels[int(values.argmax())], by_label, tokens)

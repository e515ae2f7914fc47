"""Accepts a token of a draft, or draws another, so that the distribution stays the same."""

from __future__ import annotations

from random import Random

import numpy as np

from mrs.engine.sampling.candidates import draw
from mrs.engine.sampling.processors import FloatArray


def accept(wanted: FloatArray, token: int, drafted: FloatArray, rng: Random) -> int:
    """A token with the probabilities `wanted` (V,), where `token` was drawn with `drafted` (V,).

    It is `token` with the probability min(1, p / q), else one that is drawn with the probabilities
    max(0, p - q), where p are those wanted and q those drafted.

    Source: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding"
    (arXiv 2211.17192), section 2.3.
    """
    if rng.random() * drafted[token] < wanted[token]:
        return token
    rest = np.maximum(wanted - drafted, 0)
    return draw(rest if rest.any() else wanted, rng)

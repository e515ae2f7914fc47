"""Penalties and biases apply in the order of mistral.rs, compared with float64."""

from __future__ import annotations

import numpy as np
import pytest

from mrs.engine.sampling.processors import processors_of
from mrs.request import Sampling

VOCAB, PROMPT, REPLY = 12, [1, 2, 3, 7, 1, 2], [3, 7, 5, 5, 1, 2]


def in_float64(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """DRY, then frequency and presence, then repetition, then biases."""
    out, text = logits.astype(np.float64), PROMPT + REPLY
    for token in range(VOCAB):
        # The longest run before an earlier occurrence of the token that also ends the text.
        lengths = [
            next(n for n in range(end + 1) if n == end or text[end - 1 - n] != text[-1 - n])
            for end in range(1, len(text))
            if text[end] == token
        ]
        excess = max(lengths, default=0) - sampling.dry_allowed_length
        if excess >= 0:
            out[token] -= sampling.dry_multiplier * sampling.dry_base**excess
    for token in set(REPLY):
        count = REPLY.count(token)
        out[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
    for token in set(text):
        penalty = sampling.repetition_penalty
        out[token] = out[token] / penalty if out[token] > 0 else out[token] * penalty
    for token, value in sampling.logit_bias:
        out[token] += value
    return out


@pytest.mark.parametrize("dry", [0.0, 0.8])
@pytest.mark.parametrize("frequency", [0.0, 0.7])
@pytest.mark.parametrize("repetition", [1.0, 1.3])
@pytest.mark.parametrize("bias", [(), ((1, 4.0), (5, -3.0), (9, 2.5))])
def test_the_order(dry: float, frequency: float, repetition: float, bias: tuple) -> None:
    sampling = Sampling(
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=frequency / 2,
        logit_bias=bias,
        dry_multiplier=dry,
    )
    logits = np.random.default_rng(3).normal(0, 3, VOCAB).astype(np.float32)
    expected = in_float64(logits, sampling)
    processors = processors_of(sampling, PROMPT, VOCAB, frozenset())
    for token in REPLY:
        for processor in processors:
            processor.append(token)
    for process in processors:
        process(logits)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)

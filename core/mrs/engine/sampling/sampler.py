"""Choose the next token from logits, on the host: few of them are left soon."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np

from mrs.engine.sampling.candidates import sample_token
from mrs.engine.sampling.processors import FloatArray, processors_of
from mrs.request import Sampling


@dataclass(frozen=True)
class SampledToken:
    """A token id, and if asked for the model's own log-probability of it and of the likeliest.

    `top` are pairs of a token id and its natural logarithm of probability, the likeliest first.
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Chooses the tokens of one reply: processors change the logits in turn, then one is drawn.

    Frequency and presence penalties count the reply's own tokens, the others the prompt's too.
    `breakers` are the tokens that end a repetition for the DRY penalty.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt_ids: list[int],
        vocab_size: int,
        rng: Random,
        breakers: frozenset[int] = frozenset(),
    ) -> None:
        self._sampling = sampling
        self._rng = rng
        self.processors = processors_of(sampling, prompt_ids, vocab_size, breakers)

    def __call__(self, logits: FloatArray) -> SampledToken:
        """The next token after logits (V,), which stay as they are. Raises MrsError."""
        processed = logits.copy() if self.processors else logits
        for process in self.processors:
            process(processed)
        if self._sampling.temperature == 0:
            token = int(processed.argmax())
        else:
            token = sample_token(processed, self._sampling, self._rng)
        for processor in self.processors:
            processor.append(token)
        if self._sampling.logprobs is None:
            return SampledToken(token)
        return _with_logprobs(token, logits, self._sampling.logprobs)


def _with_logprobs(token: int, logits: FloatArray, count: int) -> SampledToken:
    wide = logits.astype(np.float64)
    largest = wide.max()
    logprobs = wide - (largest + np.log(np.exp(wide - largest).sum()))
    top = np.argsort(-logprobs, kind="stable")[:count].tolist()
    return SampledToken(
        token, float(logprobs[token]), tuple((id, float(logprobs[id])) for id in top)
    )

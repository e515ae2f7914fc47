"""Choose the next token from logits, on the host: a handful of numbers is left soon."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from mrs.engine.sampling.draw import Numbers, draw
from mrs.engine.sampling.dry import RepetitionFinder
from mrs.errors import UsageError
from mrs.request import Sampling

#: Makes the likeliest token impossible and is no infinity yet: e ** 60 is 1e26.
_LARGEST_GROWTH = 60.0


@dataclass(frozen=True)
class Choice:
    """A token, and if asked for how likely the model itself held it and the likeliest ones.

    `top` are pairs of a token and its natural logarithm of probability, the likeliest first.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Chooses the tokens of one reply.

    The order is: bias, penalties, temperature, top-k, top-p, min-p, draw. Frequency and presence
    penalties count the reply's own tokens, the others the prompt's too, except for those beyond the
    vocabulary, which only prompts have. `breakers` are the tokens that end a repetition.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt_ids: list[int],
        vocab_size: int,
        chances: Random,
        breakers: frozenset[int] = frozenset(),
    ) -> None:
        self._sampling = sampling
        self._chances = chances
        self._bias: Numbers | None = None
        if sampling.logit_bias:
            self._bias = _bias(sampling.logit_bias, vocab_size)
        self._repetitions: RepetitionFinder | None = None
        if sampling.dry_multiplier:
            self._repetitions = RepetitionFinder(prompt_ids, breakers)
        self._said: set[int] = set()
        self._penalties: Numbers | None = None
        if sampling.frequency_penalty or sampling.presence_penalty:
            self._penalties = np.zeros(vocab_size, np.float32)
        self._seen: npt.NDArray[np.bool_] | None = None
        if sampling.repetition_penalty != 1.0:
            self._seen = np.zeros(vocab_size, np.bool_)
            self._seen[[token for token in prompt_ids if token < vocab_size]] = True

    def __call__(self, logits: Numbers) -> Choice:
        """The next token after logits (V,), which stay as they are. Raises MrsError."""
        penalized = self._penalized(logits)
        if self._sampling.temperature == 0:
            token = int(penalized.argmax())
        else:
            token = draw(penalized, self._sampling, self._chances)
        self._take(token)
        if self._sampling.logprobs is None:
            return Choice(token)
        return _with_logprobs(token, logits, self._sampling.logprobs)

    def _take(self, token: int) -> None:
        """Count a token of the reply."""
        if self._penalties is not None:
            self._penalties[token] += self._sampling.frequency_penalty
            if token not in self._said:
                self._penalties[token] += self._sampling.presence_penalty
                self._said.add(token)
        if self._seen is not None:
            self._seen[token] = True
        if self._repetitions is not None:
            self._repetitions.add(token)

    def _penalized(self, logits: Numbers) -> Numbers:
        if self._bias is not None:
            logits = logits + self._bias
        if self._seen is not None:
            penalty = np.float32(self._sampling.repetition_penalty)
            stretched = np.where(logits > 0, logits / penalty, logits * penalty)
            logits = np.where(self._seen, stretched, logits)
        if self._penalties is not None:
            logits = logits - self._penalties
        if self._repetitions is not None:
            logits = self._without_repetition(logits, self._repetitions.continuations())
        return logits

    def _without_repetition(self, logits: Numbers, lengths: dict[int, int]) -> Numbers:
        settings = self._sampling
        growth = math.log(settings.dry_base)
        penalties = {
            token: settings.dry_multiplier * math.exp(min(excess * growth, _LARGEST_GROWTH))
            for token, length in lengths.items()
            if (excess := length - settings.dry_allowed_length) >= 0 and token < len(logits)
        }
        logits = logits.copy()
        logits[list(penalties)] -= np.array(list(penalties.values()), np.float32)
        return logits


def _bias(pairs: tuple[tuple[int, float], ...], vocab_size: int) -> Numbers:
    bias = np.zeros(vocab_size, np.float32)
    for token, value in pairs:
        if not 0 <= token < vocab_size:
            raise UsageError(
                f"logit_bias names token {token}", hint=f"tokens are 0 to {vocab_size - 1}"
            )
        bias[token] += value
    return bias


def _with_logprobs(token: int, logits: Numbers, count: int) -> Choice:
    wide = logits.astype(np.float64)
    largest = wide.max()
    logprobs = wide - (largest + np.log(np.exp(wide - largest).sum()))
    top = np.argsort(-logprobs, kind="stable")[:count].tolist()
    return Choice(token, float(logprobs[token]), tuple((id, float(logprobs[id])) for id in top))

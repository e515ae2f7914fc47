"""Logits processors: biases and penalties, applied before a token is drawn."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mrs.engine.sampling.dry import RepetitionFinder
from mrs.errors import UsageError
from mrs.request import Sampling

FloatArray = npt.NDArray[np.float32]

#: Makes the likeliest token impossible and is no infinity yet: e ** 60 is 1e26.
_LARGEST_GROWTH = 60.0


class LogitsProcessor(Protocol):
    """A setting of a reply's sampling, with the state that it needs."""

    def __call__(self, logits: FloatArray) -> None:
        """Change the logits (V,) of the next token in place."""

    def append(self, token: int) -> None:
        """Add a token of the reply to the state."""


class Constraint(LogitsProcessor, Protocol):
    """Lets a reply have only some texts, and ends it where nothing more can follow."""

    @property
    def is_complete(self) -> bool:
        """Whether the reply ends here."""

    def forced_tokens(self) -> list[int]:
        """The only tokens that can follow, often none."""

    def num_allowed(self, tokens: list[int]) -> int:
        """How many of these tokens can follow, up to the first that cannot."""


class LogitBias:
    """Adds to the logits of tokens, each a pair of token id and value. Raises UsageError."""

    def __init__(self, pairs: Sequence[tuple[int, float]], vocab_size: int) -> None:
        bias: dict[int, float] = {}
        for token, value in pairs:
            if not 0 <= token < vocab_size:
                raise UsageError(
                    f"logit_bias names token {token}", hint=f"tokens are 0 to {vocab_size - 1}"
                )
            bias[token] = bias.get(token, 0.0) + value
        self._ids = list(bias)
        self._bias = np.array(list(bias.values()), np.float32)

    def __call__(self, logits: FloatArray) -> None:
        logits[self._ids] += self._bias

    def append(self, token: int) -> None:
        """A bias stays the same."""


class RepetitionPenalty:
    """Divides positive logits of tokens of the prompt and the reply, and multiplies negative ones.

    Source: CTRL (arXiv 1909.05858), section 4.1. Prompts may have tokens beyond the vocabulary.
    """

    def __init__(self, penalty: float, prompt_ids: Sequence[int], vocab_size: int) -> None:
        self._penalty = np.float32(penalty)
        self._tokens = {token for token in prompt_ids if token < vocab_size}
        self._ids = array("q", self._tokens)

    def __call__(self, logits: FloatArray) -> None:
        ids = np.asarray(self._ids)
        before = logits[ids]
        logits[ids] = np.where(before > 0, before / self._penalty, before * self._penalty)

    def append(self, token: int) -> None:
        if token not in self._tokens:
            self._tokens.add(token)
            self._ids.append(token)


class FrequencyPenalty:
    """Subtracts `frequency` for each time that the reply has a token, and `presence` once."""

    def __init__(self, frequency: float, presence: float) -> None:
        self._frequency = frequency
        self._presence = presence
        self._index: dict[int, int] = {}
        self._ids = array("q")
        self._penalties = array("f")

    def __call__(self, logits: FloatArray) -> None:
        logits[np.asarray(self._ids)] -= np.asarray(self._penalties)

    def append(self, token: int) -> None:
        if token not in self._index:
            self._index[token] = len(self._ids)
            self._ids.append(token)
            self._penalties.append(self._presence)
        self._penalties[self._index[token]] += self._frequency


class DryPenalty:
    """Subtracts from tokens that would make a repetition longer, more with its length."""

    def __init__(
        self, sampling: Sampling, prompt_ids: Sequence[int], breakers: frozenset[int]
    ) -> None:
        self._multiplier = sampling.dry_multiplier
        self._growth = math.log(sampling.dry_base)
        self._allowed_length = sampling.dry_allowed_length
        self._repetitions = RepetitionFinder(prompt_ids, breakers)

    def __call__(self, logits: FloatArray) -> None:
        penalties = {
            token: self._multiplier * math.exp(min(excess * self._growth, _LARGEST_GROWTH))
            for token, length in self._repetitions.continuations().items()
            if (excess := length - self._allowed_length) >= 0 and token < len(logits)
        }
        logits[list(penalties)] -= np.array(list(penalties.values()), np.float32)

    def append(self, token: int) -> None:
        self._repetitions.add(token)


class MinTokens:
    """Makes the tokens that end a reply impossible until it has `count` tokens."""

    def __init__(self, count: int, stop_ids: Collection[int], vocab_size: int) -> None:
        self._left = count
        self._ids = [token for token in stop_ids if token < vocab_size]

    def __call__(self, logits: FloatArray) -> None:
        if self._left > 0:
            logits[self._ids] = -np.inf

    def append(self, token: int) -> None:
        self._left -= 1


def processors_of(
    sampling: Sampling,
    prompt_ids: Sequence[int],
    vocab_size: int,
    breakers: frozenset[int],
    stop_ids: frozenset[int] = frozenset(),
) -> list[LogitsProcessor]:
    """The processors of some settings, in the order of mistral.rs. Raises UsageError.

    The order matters where the repetition penalty divides what others added before it.
    """
    found: list[LogitsProcessor] = []
    if sampling.dry_multiplier:
        found.append(DryPenalty(sampling, prompt_ids, breakers))
    frequency, presence = sampling.frequency_penalty, sampling.presence_penalty
    if frequency or presence:
        found.append(FrequencyPenalty(frequency, presence))
    if sampling.repetition_penalty != 1.0:
        found.append(RepetitionPenalty(sampling.repetition_penalty, prompt_ids, vocab_size))
    if sampling.logit_bias:
        found.append(LogitBias(sampling.logit_bias, vocab_size))
    if sampling.min_tokens:
        found.append(MinTokens(sampling.min_tokens, stop_ids, vocab_size))
    return found

"""Chooses the next token of a sequence from its logits, on the CPU."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mrs.engine.sampling.acceptance import accept
from mrs.engine.sampling.candidates import draw, likeliest_token, probabilities, sample_token
from mrs.engine.sampling.processors import (
    Constraint,
    FloatArray,
    LogitsProcessor,
    processors_of,
)
from mrs.request import Sampling


class Proposal(NamedTuple):
    """A drafted token, and the `probabilities` (V,) that it was drawn with; None: it is certain."""

    token: int
    probabilities: FloatArray | None = None


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
    `breakers` are the tokens that end a repetition for the DRY penalty, `stop_ids` those that end
    the reply. A `constraint` is the last
    of the processors. With `is_seeded` the tokens depend on `rng` alone, not on what was drafted.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt_ids: list[int],
        vocab_size: int,
        rng: Random,
        breakers: frozenset[int] = frozenset(),
        constraint: Constraint | None = None,
        *,
        stop_ids: frozenset[int] = frozenset(),
        is_seeded: bool = False,
    ) -> None:
        self.sampling = sampling
        self.rng = rng
        self._is_seeded = is_seeded
        self._constraint = constraint
        self.has_constraint = constraint is not None
        self.processors: list[LogitsProcessor] = [
            *processors_of(sampling, prompt_ids, vocab_size, breakers, stop_ids),
            *([constraint] if constraint else []),
        ]

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow the tokens so far."""
        return self._constraint is not None and self._constraint.is_complete

    def forced(self, max_tokens: int) -> list[SampledToken]:
        """The next tokens if there is no choice, at most `max_tokens`; they count as chosen.

        None if log-probabilities are asked for, which only a step can compute. Raises MrsError.
        """
        if self._constraint is None or self.sampling.logprobs is not None:
            return []
        forced = self._constraint.forced_tokens()[:max_tokens]
        for token in forced:
            self._append(token)
        return [SampledToken(token) for token in forced]

    def num_allowed(self, tokens: list[int]) -> int:
        """How many of these next tokens the constraint allows."""
        return len(tokens) if self._constraint is None else self._constraint.num_allowed(tokens)

    def propose(self, logits: FloatArray, rng: Random) -> Proposal:
        """A token of a draft, from logits (V,) of a draft model, which are overwritten.

        It is drawn with the same settings, but the likeliest one if no chance may change the reply.
        """
        if self.sampling.temperature == 0 or self._is_seeded:
            return Proposal(likeliest_token(logits))
        shares = probabilities(logits, self.sampling)
        return Proposal(draw(shares, rng), shares)

    def accept(self, token: int) -> SampledToken:
        """Take over the next token, which was chosen elsewhere by the same settings and `rng`."""
        self._append(token)
        return SampledToken(token)

    def _append(self, token: int) -> None:
        for processor in self.processors:
            processor.append(token)

    def __call__(self, logits: FloatArray, proposal: Proposal | None = None) -> SampledToken:
        """The next token after logits (V,), which are overwritten. Raises MrsError.

        It is distributed in the same way with a `proposal`, and likely to be that token.
        """
        count = self.sampling.logprobs
        original = None if count is None else logits.copy()
        for process in self.processors:
            process(logits)
        if self.sampling.temperature == 0:
            token = likeliest_token(logits)
        elif proposal is not None and proposal.probabilities is not None:
            shares = probabilities(logits, self.sampling)
            token = accept(shares, proposal.token, proposal.probabilities, self.rng)
        else:
            token = sample_token(logits, self.sampling, self.rng)
        self._append(token)
        if original is None or count is None:
            return SampledToken(token)
        return SampledToken(token, *logprobs_of(token, original, count))


def logprobs_of(
    token: int, logits: FloatArray, count: int
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """The log-probability of a token by logits (V,), and `SampledToken.top` of so many tokens."""
    wide = logits.astype(np.float64)
    largest = wide.max()
    log_total = largest + np.log(np.exp(wide - largest).sum())
    ids = _likeliest(logits, count)
    top = tuple(zip(ids.tolist(), (wide[ids] - log_total).tolist(), strict=True))
    return float(wide[token] - log_total), top


def _likeliest(logits: FloatArray, count: int) -> npt.NDArray[np.intp]:
    """The tokens of the `count` largest logits, the likeliest first, of equal ones the lower."""
    others = max(len(logits) - max(count, 1), 0)
    ids = np.flatnonzero(logits >= np.partition(logits, others)[others])
    return ids[np.argsort(-logits[ids], kind="stable")[:count]]

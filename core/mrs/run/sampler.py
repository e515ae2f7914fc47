"""Choose the next token from logits, on the device that holds them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mrs.errors import UsageError
from mrs.request import Sampling
from mrs.run.dry import RepetitionFinder

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
        device: torch.device,
        generator: torch.Generator,
        breakers: frozenset[int] = frozenset(),
    ) -> None:
        self._sampling = sampling
        self._bias: Tensor | None = None
        if sampling.logit_bias:
            self._bias = _bias(sampling.logit_bias, vocab_size).to(device)
        self._repetitions: RepetitionFinder | None = None
        if sampling.dry_multiplier:
            self._repetitions = RepetitionFinder(prompt_ids, breakers)
        self._generator = generator
        self._counts: Tensor | None = None
        self._seen: Tensor | None = None
        if sampling.frequency_penalty or sampling.presence_penalty:
            self._counts = torch.zeros(vocab_size, device=device)
        if sampling.repetition_penalty != 1.0:
            self._seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
            known = [token for token in prompt_ids if token < vocab_size]
            self._seen[torch.tensor(known, dtype=torch.long, device=device)] = True

    def __call__(self, logits: Tensor) -> Choice:
        """The next token after logits (V,) float32."""
        token = int(self._choose(self._penalized(logits)))
        if self._counts is not None:
            self._counts[token] += 1
        if self._seen is not None:
            self._seen[token] = True
        if self._repetitions is not None:
            self._repetitions.add(token)
        if self._sampling.logprobs is None:
            return Choice(token)
        return _with_logprobs(token, logits, self._sampling.logprobs)

    def _penalized(self, logits: Tensor) -> Tensor:
        settings = self._sampling
        if self._bias is not None:
            logits = logits + self._bias
        if self._seen is not None:
            penalty = settings.repetition_penalty
            stretched = torch.where(logits > 0, logits / penalty, logits * penalty)
            logits = torch.where(self._seen, stretched, logits)
        if self._counts is not None:
            logits = logits - settings.frequency_penalty * self._counts
            logits = logits - settings.presence_penalty * (self._counts > 0)
        if self._repetitions is not None:
            logits = self._without_repetition(logits, self._repetitions.continuations())
        return logits

    def _without_repetition(self, logits: Tensor, lengths: dict[int, int]) -> Tensor:
        settings = self._sampling
        growth = math.log(settings.dry_base)
        penalties = {
            token: settings.dry_multiplier * math.exp(min(excess * growth, _LARGEST_GROWTH))
            for token, length in lengths.items()
            if (excess := length - settings.dry_allowed_length) >= 0 and token < len(logits)
        }
        if not penalties:
            return logits
        tokens = torch.tensor(list(penalties), device=logits.device)
        values = torch.tensor(list(penalties.values()), device=logits.device)
        return logits.index_add(0, tokens, -values.to(logits.dtype))

    def _choose(self, logits: Tensor) -> Tensor:
        if self._sampling.temperature == 0:
            return logits.argmax()
        # All filters only need the most likely tokens in order; top-k bounds how many.
        count = min(self._sampling.top_k or logits.shape[0], logits.shape[0])
        values, ids = (logits / self._sampling.temperature).topk(count)
        probabilities = self._filtered(values.softmax(-1))
        drawn = torch.multinomial(probabilities, 1, generator=self._generator)
        return ids[drawn].squeeze(0)

    def _filtered(self, probabilities: Tensor) -> Tensor:
        """Zero what top-p and min-p exclude; `probabilities` are sorted, largest first."""
        settings = self._sampling
        keep = torch.ones_like(probabilities, dtype=torch.bool)
        if settings.top_p < 1:
            keep &= probabilities.cumsum(-1) - probabilities < settings.top_p
        if settings.min_p > 0:
            keep &= probabilities >= settings.min_p * probabilities[0]
        keep[0] = True  # rounding never leaves nothing to draw from
        return probabilities * keep


def _bias(pairs: tuple[tuple[int, float], ...], vocab_size: int) -> Tensor:
    bias = torch.zeros(vocab_size)
    for token, value in pairs:
        if not 0 <= token < vocab_size:
            raise UsageError(
                f"logit_bias names token {token}", hint=f"tokens are 0 to {vocab_size - 1}"
            )
        bias[token] += value
    return bias


def _with_logprobs(token: int, logits: Tensor, count: int) -> Choice:
    logprobs = logits.log_softmax(-1)
    values, ids = logprobs.topk(min(count, logits.shape[0]))
    top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return Choice(token, float(logprobs[token]), top)

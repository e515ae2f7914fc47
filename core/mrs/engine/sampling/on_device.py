"""Chooses tokens on the device of the logits, without the host: a part of a captured step."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import torch
from torch import Tensor

from mrs.request import Sampling

#: Below this the likeliest token is drawn in any case, and quotients stay finite.
_LEAST_TEMPERATURE = 1e-20

_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "uniform",
)


def is_supported(sampling: Sampling) -> bool:
    """Whether a device can choose the tokens: without log-probabilities, biases and DRY."""
    return sampling.logprobs is None and not sampling.logit_bias and not sampling.dry_multiplier


class DeviceSampler:
    """Chooses a token for each of `size` rows of logits, by settings that each row has.

    `settings` (fields, size) float32 are written once a step; `prompt` (size, V) are the tokens of
    the prompts, and `counts` (size, V) how often the replies have each token.
    """

    def __init__(self, size: int, vocab_size: int, device: torch.device) -> None:
        self._host = np.zeros((len(_FIELDS), size), np.float32)
        self.settings = torch.zeros(len(_FIELDS), size, device=device)
        self.prompt = torch.zeros(size, vocab_size, dtype=torch.bool, device=device)
        self.counts = torch.zeros(size, vocab_size, dtype=torch.int32, device=device)
        self._ranks = torch.arange(vocab_size, device=device)

    def begin(self, row: int, prompt_ids: Sequence[int], reply_ids: Sequence[int] = ()) -> None:
        """Let a row be that of another sequence."""
        vocab_size, device = self.prompt.shape[1], self.prompt.device
        seen = torch.zeros(vocab_size, dtype=torch.bool)
        seen[[token for token in prompt_ids if token < vocab_size]] = True
        reply = torch.tensor(list(reply_ids), dtype=torch.int64)
        self.prompt[row].copy_(seen.to(device))
        self.counts[row].copy_(torch.bincount(reply, minlength=vocab_size).int().to(device))

    def set(self, samplings: Sequence[Sampling], rngs: Sequence[Random]) -> None:
        """Write the settings of the first rows, and a random value for each: one copy."""
        for row, (sampling, rng) in enumerate(zip(samplings, rngs, strict=True)):
            self._host[:, row] = [
                *(float(getattr(sampling, name) or 0) for name in _FIELDS[:-1]),
                rng.random() if sampling.temperature else 0.0,
            ]
        self.settings.copy_(torch.from_numpy(self._host), non_blocking=True)

    def __call__(self, logits: Tensor) -> Tensor:
        """The tokens (size,) int64 after logits (size, V) float32; counts them.

        A row whose logits are not finite has token -1.
        """
        temperature, top_k, top_p, min_p, *penalties, uniform = self.settings[:, :, None].unbind(0)
        logits = self._penalized(logits, *penalties)
        ordered, ids = logits.sort(dim=1, descending=True, stable=True)
        weights = ordered - ordered[:, :1]
        weights = (weights / temperature.clamp(min=_LEAST_TEMPERATURE)).exp().double()
        weights = weights * ((self._ranks < top_k) | (top_k == 0))
        enough = top_p.double() * weights.sum(1, keepdim=True)
        weights = weights * (weights >= min_p.clamp(max=1.0))
        before = weights.cumsum(1) - weights
        weights = weights * ((before < enough) | (top_p >= 1))
        sums = weights.cumsum(1)
        # The first token whose sum exceeds the drawn part of the total; at temperature 0 the first.
        drawn = (sums <= uniform.double() * sums[:, -1:]).sum(1, keepdim=True)
        last = (weights > 0).sum(1, keepdim=True).clamp(min=1) - 1
        drawn = torch.minimum(drawn, last) * (temperature > 0)
        tokens = ids.gather(1, drawn)
        self.counts.scatter_add_(1, tokens, torch.ones_like(tokens, dtype=torch.int32))
        return torch.where(ordered[:, :1].isfinite(), tokens, -1)[:, 0]

    def _penalized(
        self, logits: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor
    ) -> Tensor:
        replied = self.counts > 0
        repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where(replied | self.prompt, repeated, logits)
        return logits - frequency * self.counts - presence * replied

"""Chooses tokens on the device of the logits, without the host: a part of a captured step."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mrs.engine.sampling.candidates import TEMPERATURES
from mrs.request import Sampling
from mrs.request.sampling import SETTINGS

#: The settings that a device knows; others that change which token is chosen are for the host.
_SETTINGS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
#: Values that each row needs at a step: its settings, and a random number.
ROW_VALUES = len(_SETTINGS) + 1
#: Rows that are sorted at once, which bounds the memory of large vocabularies.
_ROWS_AT_ONCE = 8


def is_supported(sampling: Sampling) -> bool:
    """Whether a device can choose the tokens: no setting acts but those it knows."""
    return sampling.logprobs is None and all(
        setting.off is None or getattr(sampling, name) == setting.off
        for name, setting in SETTINGS.items()
        if name not in _SETTINGS
    )


def has_penalties(sampling: Sampling) -> bool:
    """Whether a token depends on the earlier ones."""
    return bool(
        sampling.frequency_penalty
        or sampling.presence_penalty
        or sampling.repetition_penalty != 1.0
    )


def row_values(sampling: Sampling, rng: Random) -> list[float]:
    """The ROW_VALUES of a row. Takes a random number as often as the sampler of the host."""
    settings = [float(getattr(sampling, name)) for name in _SETTINGS]
    return [*settings, rng.random() if sampling.temperature else 0.0]


class DeviceSampler:
    """Chooses a token for each row of logits, as `Sampler` does for one on the host.

    `_is_prompt` (rows, V) says which tokens the prompt of a row has, and `_counts` (rows, V) how
    often its reply has them; only rows with penalties need them.
    """

    def __init__(self, rows: int, vocab_size: int, device: torch.device) -> None:
        self._is_prompt = torch.zeros(rows, vocab_size, dtype=torch.bool, device=device)
        self._counts = torch.zeros(rows, vocab_size, dtype=torch.int32, device=device)
        self._ranks = torch.arange(vocab_size, device=device)

    def begin(self, row: int, prompt_ids: Sequence[int], reply_ids: Sequence[int]) -> None:
        """Let a row be that of another sequence. Prompts may have tokens beyond the vocabulary."""
        _, vocab_size = self._counts.shape
        is_prompt = np.zeros(vocab_size, np.bool_)
        is_prompt[[token for token in prompt_ids if token < vocab_size]] = True
        counts = np.bincount(np.array(reply_ids, np.int64), minlength=vocab_size)
        self._write(self._is_prompt, row, is_prompt)
        self._write(self._counts, row, counts.astype(np.int32))

    @staticmethod
    def _write(table: Tensor, row: int, values: npt.NDArray[np.generic]) -> None:
        table[row].copy_(torch.from_numpy(values))

    def __call__(self, logits: Tensor, values: Tensor) -> Tensor:
        """The tokens (N,) int64 after logits (N, V), which are counted.

        `values` (ROW_VALUES, N) float64 are those of each row. A row whose logits are not finite
        has token -1.
        """
        rows = range(0, logits.shape[0], _ROWS_AT_ONCE)
        slices = [slice(first, first + _ROWS_AT_ONCE) for first in rows]
        chosen = [self._choose(logits[some], values[:, some], some) for some in slices]
        return chosen[0] if len(chosen) == 1 else torch.cat(chosen)

    def _choose(self, logits: Tensor, values: Tensor, rows: slice) -> Tensor:
        temperature, top_k, top_p, min_p, *penalties, uniform = values[:, :, None].unbind(0)
        counts = self._counts[rows][: logits.shape[0]]
        is_prompt = self._is_prompt[rows][: logits.shape[0]]
        logits = _penalized(logits, counts, is_prompt, *penalties)
        logits, ids = logits.sort(dim=1, descending=True, stable=True)
        narrow = (logits - logits[:, :1]) / temperature.clamp(*TEMPERATURES).float()
        narrow = narrow.exp()
        weights = narrow.double() * ((self._ranks < top_k) | (top_k <= 0))
        enough = top_p * weights.sum(1, keepdim=True)
        weights = weights * (narrow >= min_p.clamp(max=1.0).float())
        before = weights.cumsum(1) - weights
        # Without top-p the host draws in the order of tokens, so that equal seeds draw equal ones.
        in_order = top_p >= 1
        by_token = torch.zeros_like(weights).scatter(1, ids, weights)
        weights = torch.where(in_order, by_token, weights * (before < enough))
        drawn = _draw(weights, uniform)
        tokens = torch.where(in_order, drawn, ids.gather(1, drawn))
        tokens = torch.where(temperature > 0, tokens, ids[:, :1])
        tokens = torch.where(logits[:, :1].isfinite(), tokens, -1)
        counts.scatter_add_(1, tokens.clamp(min=0), torch.ones_like(tokens, dtype=torch.int32))
        return tokens[:, 0]


def _penalized(
    logits: Tensor,
    counts: Tensor,
    is_prompt: Tensor,
    frequency: Tensor,
    presence: Tensor,
    repetition: Tensor,
) -> Tensor:
    """Logits (N, V) after the penalties, in the order of the host's processors."""
    is_reply = counts > 0
    logits = logits - (frequency.float() * counts + presence.float() * is_reply)
    repeated = torch.where(logits > 0, logits / repetition.float(), logits * repetition.float())
    return torch.where(is_reply | is_prompt, repeated, logits)


def _draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first index (N, 1) at which the sum of weights (N, V) exceeds `uniform` of their sum."""
    sums = weights.cumsum(1)
    total = sums[:, -1:]
    drawn = (sums <= uniform * total).sum(1, keepdim=True)
    return torch.minimum(drawn, (sums < total).sum(1, keepdim=True))

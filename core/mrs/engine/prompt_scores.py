"""The log-probabilities of a prompt's own tokens, from the logits before each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from mrs.engine.sampling.sampler import logprobs_of


class ScoredToken(NamedTuple):
    """A token of a prompt, and the natural logarithm of its probability after those before it.

    `rank` is 1 for the likeliest token. `top` are pairs of a token id and its log-probability, the
    likeliest first.
    """

    id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class PromptScores:
    """Scores each token of a prompt but the first, with the `count` likeliest ones beside it.

    Logits come in any order; those that come twice replace their scores.
    """

    def __init__(self, prompt_ids: Sequence[int], count: int) -> None:
        self.ids = tuple(prompt_ids)
        self._count = count
        self._found: dict[int, ScoredToken] = {}

    def wanted(self, start: int, end: int) -> range:
        """Those of the positions `start` to `end` whose logits score the token after them."""
        if self._is_complete:  # the sequence was preempted, and its prompt is computed again
            return range(start, start)
        return range(start, max(start, min(end, len(self.ids) - 1)))

    def take(self, position: int, row: Tensor) -> None:
        """Score the token after `position`, with the logits (V,) float32 there.

        One row at a time, so that the sum is the same in pieces of any size.
        """
        logits, token = row.cpu().numpy(), self.ids[position + 1]  # a row takes NumPy least time
        logprob, top = logprobs_of(token, logits, self._count)
        rank = int((logits > logits[token]).sum()) + 1
        self._found[position + 1] = ScoredToken(token, logprob, rank, top)

    @property
    def _is_complete(self) -> bool:
        return len(self._found) == len(self.ids) - 1

    @property
    def tokens(self) -> list[ScoredToken]:
        """The tokens of the prompt after the first, once all are scored."""
        return [self._found[index] for index in range(1, len(self.ids))]

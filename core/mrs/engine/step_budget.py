"""How many tokens a step may compute, so that neither replies nor newcomers stand still."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

#: Fewer tokens of prompts in a step would cost more than the shorter gap is worth.
LEAST_TOKENS = 16
#: Of a client's prompt while nobody else is there, whom a long step would keep waiting.
LEAST_LONE_TOKENS = 128
#: How many times the target a step of a client alone may take.
LONE_TARGETS = 8
#: The share of the target that a step is planned for: steps of equal budgets take unequal times,
#: and few should exceed the target.
_PLANNED_SHARE = 0.85
#: The first depths whose rates are one; each later range is as long as all before it.
_SHALLOW = 1024


class Chunk(NamedTuple):
    """`num_tokens` of a sequence that are computed after `depth` others."""

    num_tokens: int
    depth: int


class StepBudget:
    """At most `step_tokens`, and as many as take about `target_s` if somebody waits for the step.

    Attention to a long context takes long, so there is a rate for each range of depths: that of
    recent steps there. For a range that no step has reached, it is that of the range before, halved
    since depths double; for the first, it is `tokens_per_s` until one is measured. A rate includes
    the time that a step needs whatever it computes, so the budget comes near its goal from any
    start: budget' = budget * goal / seconds of the step.
    """

    def __init__(
        self, step_tokens: int, target_s: float | None = None, tokens_per_s: float | None = None
    ) -> None:
        self.step_tokens = step_tokens
        self._target_s = target_s
        self._rates: dict[int, float] = {} if tokens_per_s is None else {0: tokens_per_s}
        #: Of recent steps with prompts, whatever their depths.
        self.tokens_per_s = tokens_per_s

    def tokens(self, depth: int = 0, *, is_awaited: bool = True) -> int:
        """The tokens of a step after `depth` others; more if nobody else waits for its end."""
        rate = self._rate(_range_of(depth))
        if self._target_s is None or rate is None:
            return self.step_tokens
        least, targets = (LEAST_TOKENS, 1) if is_awaited else (LEAST_LONE_TOKENS, LONE_TARGETS)
        wanted = int(_PLANNED_SHARE * targets * self._target_s * rate)
        return min(max(wanted, least), self.step_tokens)

    def measure(self, chunks: Iterable[Chunk], seconds: float) -> None:
        """Learn from a step with prompts; one of much fewer tokens says nothing about the rate."""
        chunks = list(chunks)
        share = sum(each.num_tokens / self.tokens(each.depth) for each in chunks)
        if seconds <= 0 or share < 0.5:
            return
        measured = sum(each.num_tokens for each in chunks) / seconds
        self.tokens_per_s = _nearer(self.tokens_per_s, measured)
        ranges = {_range_of(each.depth) for each in chunks}
        rates = {number: self._rate(number) or measured for number in ranges}
        expected_s = sum(each.num_tokens / rates[_range_of(each.depth)] for each in chunks)
        for number, rate in rates.items():
            self._rates[number] = _nearer(rate, rate * expected_s / seconds)

    def _rate(self, number: int) -> float | None:
        """The tokens a second in a range of depths; None if nothing is known."""
        if not self._rates:
            return None
        known = max((each for each in self._rates if each <= number), default=min(self._rates))
        return self._rates[known] * 0.5 ** max(number - known, 0)


class StepRoom:
    """What is left of a step for prompts, whose sequences are at different depths."""

    def __init__(self, budget: StepBudget, num_decoding: int, *, is_awaited: bool) -> None:
        self._budget = budget
        self._is_awaited = is_awaited
        self._num_tokens = num_decoding
        self._used_share = num_decoding / budget.tokens(is_awaited=is_awaited)
        self._has_prompts = False

    @property
    def is_full(self) -> bool:
        is_used = self._has_prompts and self._used_share >= 1
        return is_used or self._num_tokens >= self._budget.step_tokens

    def tokens(self, depth: int) -> int:
        """How many there may be of a prompt after `depth` tokens; none if the step is full."""
        if self.is_full:
            return 0
        wanted = round((1 - self._used_share) * self._whole(depth))
        least = 1 if self._has_prompts else LEAST_TOKENS
        return min(max(wanted, least), self._budget.step_tokens - self._num_tokens)

    def take(self, chunk: Chunk) -> None:
        self._has_prompts = True
        self._num_tokens += chunk.num_tokens
        self._used_share += chunk.num_tokens / self._whole(chunk.depth)

    def _whole(self, depth: int) -> int:
        return self._budget.tokens(depth, is_awaited=self._is_awaited)


def _range_of(depth: int) -> int:
    """The number of the range of depths: up to 1024, then twice as deep each."""
    return (depth // _SHALLOW).bit_length()


def _nearer(before: float | None, now: float) -> float:
    return now if before is None else (before + now) / 2

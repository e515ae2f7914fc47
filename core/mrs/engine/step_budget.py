"""How many tokens a step may compute, so that neither replies nor newcomers stand still."""

from __future__ import annotations

import math
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
#: How many steps of replies alone a step with prompts may take: reading the weights once more for
#: it costs a sixteenth of its time, so a longer one would hold replies up for little.
REPLY_STEPS = 16
#: How many tokens take about as long as one that is scored, until some were.
SCORED_TOKENS = 16
#: The first depths whose rates are one; each later range is as long as all before it.
_SHALLOW = 1024


class Chunk(NamedTuple):
    """`num_tokens` of a sequence that are computed after `depth` others, and scored or not."""

    num_tokens: int
    depth: int
    is_scored: bool = False


class StepBudget:
    """At most `step_tokens`, and as many as take about the target if somebody waits for the step.

    The target is `target_s`, or the time of REPLY_STEPS steps without prompts if that is less.

    Attention to a long context takes long, so there is a rate for each range of depths: that of
    recent steps there. For a range that no step has reached, it is that of the range before, halved
    since depths double; for the first, it is `tokens_per_s` until one is measured. Tokens that are
    scored have rates of their own. A rate includes the time that a step needs whatever it computes,
    so the budget comes near its goal from any start: budget' = budget * goal / seconds of the step.
    """

    def __init__(
        self, step_tokens: int, target_s: float | None = None, tokens_per_s: float | None = None
    ) -> None:
        self.step_tokens = step_tokens
        self._target_s = target_s
        self._plain, self._scored = dict[int, float](), dict[int, float]()
        if tokens_per_s is not None:
            self._plain[0] = tokens_per_s
        #: Of recent steps with prompts, whatever their depths.
        self.tokens_per_s = tokens_per_s
        #: What recent steps without prompts took; None before the first.
        self.reply_s: float | None = None

    def tokens(self, depth: int = 0, *, is_scored: bool = False, is_awaited: bool = True) -> int:
        """The tokens of a step after `depth` others; more if nobody else waits for its end."""
        rate = self._rate(_range_of(depth), is_scored)
        if self._target_s is None or rate is None:
            return self.step_tokens
        least, targets = (LEAST_TOKENS, 1) if is_awaited else (LEAST_LONE_TOKENS, LONE_TARGETS)
        longest_s = self._target_s
        if self.reply_s is not None:
            longest_s = min(longest_s, REPLY_STEPS * self.reply_s)
        wanted = int(_PLANNED_SHARE * targets * longest_s * rate)
        return min(max(wanted, least), self.step_tokens)

    def measure_replies(self, seconds: float) -> None:
        """Learn from a step without prompts; one that was interrupted counts as twice the usual."""
        longest_s = math.inf if self.reply_s is None else 2 * self.reply_s
        self.reply_s = _nearer(self.reply_s, min(seconds, longest_s))

    def measure(self, chunks: Iterable[Chunk], seconds: float) -> None:
        """Learn from a step with prompts; one of much fewer tokens says nothing about the rate."""
        chunks = list(chunks)
        share = sum(
            each.num_tokens / self.tokens(each.depth, is_scored=each.is_scored) for each in chunks
        )
        if seconds <= 0 or share < 0.5:
            return
        measured = sum(each.num_tokens for each in chunks) / seconds
        self.tokens_per_s = _nearer(self.tokens_per_s, measured)
        kinds = [(_range_of(each.depth), each.is_scored) for each in chunks]
        rates = {kind: self._rate(*kind) or measured for kind in kinds}
        expected_s = sum(
            each.num_tokens / rates[kind] for each, kind in zip(chunks, kinds, strict=True)
        )
        for (number, is_scored), rate in rates.items():
            of_kind = self._scored if is_scored else self._plain
            of_kind[number] = _nearer(rate, rate * expected_s / seconds)

    def _rate(self, number: int, is_scored: bool) -> float | None:
        """The tokens a second in a range of depths; None if nothing is known."""
        rates = self._scored if is_scored else self._plain
        if rates:
            known = max((each for each in rates if each <= number), default=min(rates))
            return rates[known] * 0.5 ** max(number - known, 0)
        rate = self._rate(number, is_scored=False) if is_scored else None
        return None if rate is None else rate / SCORED_TOKENS


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

    def tokens(self, depth: int, *, is_scored: bool = False) -> int:
        """How many there may be of a prompt after `depth` tokens; none if the step is full."""
        if self.is_full:
            return 0
        wanted = round((1 - self._used_share) * self._whole(depth, is_scored))
        least = 1 if self._has_prompts else LEAST_TOKENS
        return min(max(wanted, least), self._budget.step_tokens - self._num_tokens)

    def take(self, chunk: Chunk) -> None:
        self._has_prompts = True
        self._num_tokens += chunk.num_tokens
        self._used_share += chunk.num_tokens / self._whole(chunk.depth, chunk.is_scored)

    def _whole(self, depth: int, is_scored: bool) -> int:
        return self._budget.tokens(depth, is_scored=is_scored, is_awaited=self._is_awaited)


def _range_of(depth: int) -> int:
    """The number of the range of depths: up to 1024, then twice as deep each."""
    return (depth // _SHALLOW).bit_length()


def _nearer(before: float | None, now: float) -> float:
    return now if before is None else (before + now) / 2

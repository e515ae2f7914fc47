"""When a sequence will be free: from the plan's rates, and from measured ones as they come."""

from __future__ import annotations

from collections.abc import Iterable

from mrs.engine.sequence import Sequence
from mrs.events import ReplyUsage

#: Weight of the newest measurement, and the length of a reply before any is known.
_NEWEST, _REPLY_TOKENS = 0.25, 128.0
_MOST_SECONDS = 120


class Forecast:
    """Forecasts with `step_s`, the time of a token, and the mean length of replies."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.reply_tokens = _REPLY_TOKENS

    def learn(self, usage: ReplyUsage) -> None:
        """Add the figures of a finished reply."""
        self.reply_tokens += _NEWEST * (usage.completion_tokens - self.reply_tokens)
        if usage.completion_tokens > 1:
            step_s = usage.completion_s / (usage.completion_tokens - 1)
            self.step_s += _NEWEST * (step_s - self.step_s)

    def remaining_s(self, sequence: Sequence, prompt_tokens_per_s: float) -> float:
        """Seconds until a running sequence is finished: its prompt, then a step for each token."""
        missing = max(sequence.num_prompt_tokens - sequence.num_computed_tokens, 0)
        left = sequence.max_length - len(sequence.token_ids)
        expected = max(self.reply_tokens - sequence.num_new_tokens, 1)
        return missing / prompt_tokens_per_s + min(left, expected) * self.step_s

    def next_free_s(self, sequences: Iterable[Sequence], prompt_tokens_per_s: float) -> int:
        """Whole seconds until the first of the running sequences is finished, at least 1."""
        soonest = min(
            (self.remaining_s(each, prompt_tokens_per_s) for each in sequences), default=0.0
        )
        return min(int(soonest) + 1, _MOST_SECONDS)

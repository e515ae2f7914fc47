"""How many tokens a step may compute, so that replies do not stand still."""

from __future__ import annotations

#: Fewer tokens of prompts in a step would cost more than the shorter gap is worth.
LEAST_TOKENS = 16
#: The share of the target that a step is planned for: steps of equal budgets take unequal times,
#: and few should exceed the target.
_PLANNED_SHARE = 0.85


class StepBudget:
    """At most `step_tokens`; while sequences are decoding, as many as stay below `target_s`.

    The rate is that of recent steps with prompts, at first `tokens_per_s`. Since it includes the
    time that a step needs whatever it computes, the budget comes near that goal from any start:
    budget' = budget * goal / seconds of the step.
    """

    def __init__(
        self, step_tokens: int, target_s: float | None = None, tokens_per_s: float | None = None
    ) -> None:
        self.step_tokens = step_tokens
        self._target_s = target_s
        self.tokens_per_s = tokens_per_s

    def tokens(self, num_decoding: int) -> int:
        """The tokens of the next step, of which `num_decoding` continue replies."""
        if self._target_s is None or self.tokens_per_s is None or not num_decoding:
            return self.step_tokens
        wanted = int(_PLANNED_SHARE * self._target_s * self.tokens_per_s)
        return min(max(wanted, num_decoding + LEAST_TOKENS), self.step_tokens)

    def measure(self, num_tokens: int, seconds: float) -> None:
        """Learn from a step with prompts; one of much fewer tokens says nothing about the rate."""
        if seconds <= 0 or num_tokens < self.tokens(1) / 2:
            return
        rate = num_tokens / seconds
        before = rate if self.tokens_per_s is None else self.tokens_per_s
        self.tokens_per_s = (before + rate) / 2

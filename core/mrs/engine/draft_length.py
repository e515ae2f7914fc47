"""How many tokens a draft model drafts for a sequence: as many as are likely to save time."""

from __future__ import annotations

#: A further row of a step costs about this share of the step of one row.
_ROW_COST = 0.1
#: The chance that a drafted token is accepted, as it is assumed at first.
_FIRST_CHANCE = 0.75
#: How much of what was counted before each draft still counts.
_MEMORY = 0.9
#: Steps without a draft before another one is tried; each failure doubles them.
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 256


class DraftLength:
    """The best length of the next draft of one sequence.

    A token of the draft takes `cost` times as long as a step without a draft. If each drafted token
    is accepted with the chance a while all before it are, a draft of n tokens gives
    1 + a + ... + a^n tokens in the time 1 + n * (cost + row cost).
    """

    def __init__(self, cost: float) -> None:
        self._cost = cost + _ROW_COST
        self._pause = _FIRST_PAUSE
        self._paused_steps = 0
        self._tried, self._accepted = 1.0, _FIRST_CHANCE

    def next(self, most_tokens: int) -> int:
        """The length of the next draft, at most `most_tokens`; 0 if none would save time."""
        if self._paused_steps:
            self._paused_steps -= 1
            return 0
        best = self._best(most_tokens)
        if not best and most_tokens:
            self._paused_steps, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
            self._tried, self._accepted = 1.0, _FIRST_CHANCE
        return best

    def learn(self, drafted: int, accepted: int) -> None:
        """Count how many tokens of a draft were accepted; those after the first other do not."""
        self._tried = _MEMORY * self._tried + min(accepted + 1, drafted)
        self._accepted = _MEMORY * self._accepted + accepted
        if accepted == drafted:
            self._pause = _FIRST_PAUSE

    def _best(self, most_tokens: int) -> int:
        chance = self._accepted / self._tried
        best, best_rate, tokens = 0, 1.0, 1.0
        for length in range(1, most_tokens + 1):
            tokens += chance**length
            rate = tokens / (1 + length * self._cost)
            if rate > best_rate:
                best, best_rate = length, rate
        return best

"""How many tokens a draft model drafts for a sequence: as many as are likely to save time."""

from __future__ import annotations

from mrs.plan.speed.draft_gain import FIRST_CHANCE, DraftCost

#: How much of what was counted before each draft still counts.
_MEMORY = 0.9
#: Steps without a draft before another one is tried; each failure doubles them.
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 256


class DraftLength:
    """The best length of the next draft of one sequence, whose tokens cost `cost` each."""

    def __init__(self, cost: DraftCost) -> None:
        self._cost = cost
        self._pause = _FIRST_PAUSE
        self._paused_steps = 0
        self._tried, self._accepted = 1.0, FIRST_CHANCE

    def next(self, most_tokens: int, passed: int = 1) -> int:
        """The length of the next draft, at most `most_tokens`; 0 if none would save time.

        `passed` steps of a token have passed since the last call.
        """
        if self._paused_steps:
            self._paused_steps = max(self._paused_steps - passed, 0)
            return 0
        best = self._cost.best_length(self._accepted / self._tried, most_tokens)
        if not best and most_tokens:
            self._paused_steps, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
            self._tried, self._accepted = 1.0, FIRST_CHANCE
        return best

    @property
    def paused_steps(self) -> int:
        """How many steps have no draft before the next one."""
        return self._paused_steps

    def learn(self, drafted: int, accepted: int) -> None:
        """Count how many tokens of a draft were accepted; those after the first other do not."""
        self._tried = _MEMORY * self._tried + min(accepted + 1, drafted)
        self._accepted = _MEMORY * self._accepted + accepted
        if accepted == drafted:
            self._pause = _FIRST_PAUSE

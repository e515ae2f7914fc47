"""How many tokens are drafted for a sequence: as many as are likely to save time."""

from __future__ import annotations

from mrs.engine.draft_pace import Acceptance, DraftPace

#: Steps without a draft before another one is tried; each failure doubles them.
_FIRST_PAUSE, _LONGEST_PAUSE = 16, 256
#: Steps of the first reply of all without a draft.
_UNKNOWN_PAUSE = 4


class DraftLength:
    """The best length of the next draft of one sequence, by the `pace` of all.

    What it learns in a pause costs little: the draft that ends one has a single token.
    """

    def __init__(self, pace: DraftPace) -> None:
        self._pace = pace
        self._pause = _FIRST_PAUSE
        self._is_trial = False
        self._acceptance = Acceptance(pace.usual.chance)
        # Until it is known what a step without drafts takes, there are none.
        self._paused_steps = 0 if pace.knows(1) else _UNKNOWN_PAUSE

    def next(self, most_tokens: int, passed: int = 1, sequences: int = 1) -> int:
        """The length of the next draft, at most `most_tokens`; 0 if none would save time.

        `passed` steps of a token have passed since the last call; the next one has so many
        `sequences`.
        """
        if self._paused_steps:
            self._paused_steps = max(self._paused_steps - passed, 0)
            self._is_trial = not self._paused_steps
            return 0
        if not self._pace.knows(sequences):
            return 0
        if self._is_trial:
            return min(most_tokens, 1)
        chance = self._acceptance.chance
        best = self._pace.cost(sequences).best_length(chance, most_tokens)
        if not best and most_tokens:
            self._paused_steps, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        return best

    @property
    def paused_steps(self) -> int:
        """How many steps have no draft before the next one."""
        return self._paused_steps

    def learn(self, drafted: int, accepted: int) -> None:
        """Learn how many tokens of a draft were accepted."""
        if self._is_trial:  # what was before the pause does not count
            self._is_trial, self._acceptance = False, Acceptance()
        self._acceptance.learn(drafted, accepted)
        self._pace.usual.learn(drafted, accepted)

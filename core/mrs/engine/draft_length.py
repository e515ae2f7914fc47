"""How many tokens are drafted for a sequence: as many as are likely to save time."""

from __future__ import annotations

from mrs.engine.draft_pace import Acceptance, DraftPace
from mrs.graph.step_rows import MAX_DRAFT_ROWS

#: Steps of the first reply of all without a draft: until it is known what they take.
_UNKNOWN_PAUSE = 32


class DraftLength:
    """The best length of the next draft of one sequence, by the `pace` of all.

    What it learns after a pause costs little: the first draft is the shortest that may save time.
    """

    def __init__(self, pace: DraftPace) -> None:
        self._pace = pace
        self._is_trial = False
        self._acceptance = Acceptance(pace.usual.chance)
        self._paused_steps = pace.paused_steps if pace.is_known else _UNKNOWN_PAUSE

    def next(self, most_tokens: int, passed: int = 1, sequences: int = 1) -> int:
        """The length of the next draft, at most `most_tokens`; 0 if none would save time.

        `passed` steps of a token have passed since the last call; the next one has so many
        `sequences`.
        """
        pace = self._pace
        if self._paused_steps:
            self._paused_steps = max(self._paused_steps - passed, 0)
            pace.paused_steps = min(pace.paused_steps, self._paused_steps)
            self._is_trial = not self._paused_steps
            return 0
        cost = pace.cost(sequences)
        chance = 1.0 if self._is_trial else self._acceptance.chance
        longest = max(MAX_DRAFT_ROWS // sequences - 1, 0)
        # At the end of a reply there may only be room for one that is too short.
        if longest and not cost.best_length(chance, longest):
            self._is_trial, self._paused_steps = False, pace.begin_pause(cost)
            return 0
        if self._is_trial:
            least = cost.least_length(longest)
            return least if least <= most_tokens else 0
        return cost.best_length(chance, most_tokens)

    @property
    def paused_steps(self) -> int:
        """How many steps have no draft before the next one."""
        return self._paused_steps

    @property
    def is_trial(self) -> bool:
        """Whether the next draft, or the last one until it is verified, is the first of a pause."""
        return self._is_trial

    def learn(self, drafted: int, accepted: int) -> None:
        """Learn how many tokens of a draft were accepted."""
        if self._is_trial:  # what was before the pause does not count
            self._is_trial, self._acceptance = False, Acceptance()
        elif accepted == drafted > 1:
            self._pace.end_pauses()
        self._acceptance.learn(drafted, accepted)
        self._pace.usual.learn(drafted, accepted)

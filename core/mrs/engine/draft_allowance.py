"""What drafts of a reply may lose: little, however often they are rejected."""

from __future__ import annotations

from mrs.engine.draft_pace import Acceptance
from mrs.plan.speed.draft_gain import ROW_COST, DraftCost

#: The steps that drafts may lose at first, and for each token of a reply: together less than two in
#: a hundred of a reply of 100 tokens. With less, one false hit ends the drafts of a good text.
_FIRST_STEPS, _TOKEN_STEPS = 1.5, 0.005
#: Of the steps that were saved, so many may be lost again: a text changes.
_MOST_SAVED = 16.0


class DraftAllowance:
    """Limits the drafts of one sequence to what they may lose if all their tokens are rejected."""

    def __init__(self) -> None:
        self._acceptance = Acceptance()
        self._saved = 0.0

    def most_tokens(self, cost: DraftCost, reply_tokens: int, wanted: int) -> int:
        """The length of the next draft after so many tokens of the reply, at most `wanted`."""
        left = _FIRST_STEPS + _TOKEN_STEPS * reply_tokens + self._saved
        if left < ROW_COST:  # not even a token of a draft
            return 0
        best = cost.best_length(self._acceptance.chance, wanted)
        # Where none is likely to save time, the shortest that may is tried again.
        lengths = range(best, 0, -1) if best else range(1, wanted + 1)
        for length in lengths:
            steps = cost.steps(length)
            if steps < 1 + length and steps - 1 + cost.rejected <= left:
                return length
        return 0

    def learn(self, cost: DraftCost, drafted: int, accepted: int) -> None:
        """Count a draft, and how many of its tokens were accepted."""
        self._acceptance.learn(drafted, accepted)
        lost = cost.steps(drafted) + (cost.rejected if accepted < drafted else 0)
        self._saved = min(self._saved + 1 + accepted - lost, _MOST_SAVED)

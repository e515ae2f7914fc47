"""What drafts of a reply may lose: little, however often they are rejected."""

from __future__ import annotations

from mrs.engine.draft_pace import Acceptance
from mrs.plan.speed.draft_gain import FIRST_CHANCE, DraftCost

#: The steps that drafts may lose at first, and for each token of a reply: together less than two in
#: a hundred of a reply of 100 tokens. With less, one false hit ends the drafts of a good text. The
#: first are lent: many short replies together lose no more of them than one.
_FIRST_STEPS, _TOKEN_STEPS = 1.5, 0.005
#: Of the steps that were saved, so many may be lost again: a text changes.
_MOST_SAVED = 16.0
#: Steps that a reply may lose of what earlier ones saved, or might have lost: the drafts of a tiny
#: model are so dear that a reply alone could not afford the first of them.
_MOST_LENT = 4.0


class DraftAllowance:
    """Limits the drafts of one sequence to what they may lose if all their tokens are rejected.

    `chance` is how often tokens of earlier drafts were accepted. `lent` steps may be lost, too.
    """

    def __init__(self, chance: float = FIRST_CHANCE, lent: float = 0.0) -> None:
        self._acceptance = Acceptance(chance)
        self._saved = lent

    def left(self, reply_tokens: int) -> float:
        """The steps that drafts may still lose after so many tokens of the reply."""
        return _FIRST_STEPS + _TOKEN_STEPS * reply_tokens + self._saved

    def most_tokens(self, cost: DraftCost, reply_tokens: int, wanted: int) -> int:
        """The length of the next draft after so many tokens of the reply, at most `wanted`."""
        left = self.left(reply_tokens)
        if left < cost.rows(2) - 1:  # not even a token of a draft
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


class SharedAllowance:
    """What the drafts of all replies together may lose: those that need more get it from others."""

    def __init__(self) -> None:
        self._spare = 0.0

    def begin(self, chance: float) -> DraftAllowance:
        """The allowance of a new reply, which is less where others have lost more than theirs."""
        lent = min(self._spare, _MOST_LENT)
        self._spare -= lent
        return DraftAllowance(chance, lent)

    def end(self, allowance: DraftAllowance, reply_tokens: int) -> None:
        """Keep what a reply of so many tokens has left for others."""
        spare = self._spare + allowance.left(reply_tokens) - _FIRST_STEPS
        self._spare = min(spare, _MOST_SAVED)

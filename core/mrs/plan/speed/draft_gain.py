"""What drafts of several tokens save, by what they cost and how often they are accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mrs.plan.speed.roofline import SpeedEstimate

#: A further row of a step costs about this share of the step of one row.
ROW_COST = 0.1
#: What a draft adds to a step beside its tokens: the interpreter's part, which only matters where
#: steps are shorter than a millisecond.
STEP_S = 0.15e-3
#: The chance that a drafted token is accepted, as it is assumed before any is known.
FIRST_CHANCE = 0.75


class DraftCost(NamedTuple):
    """What drafts cost, in steps without a draft.

    For each drafted token: to `draft` it, and to compute its `row`; for each draft, a `step`. Steps
    with drafts take `factor` times as long as by these: 1 until they are measured.
    """

    draft: float
    row: float = ROW_COST
    step: float = 0.0
    factor: float = 1.0

    @property
    def of_token(self) -> float:
        return self.draft + self.row

    def of(self, sequences: int) -> DraftCost:
        """The cost for each of so many sequences, which share all but their rows."""
        return self._replace(row=sequences * self.row)

    def steps(self, length: float) -> float:
        """How many steps without a draft a step with one of this length takes; it may be a mean."""
        return self.factor * (1 + self.step + length * self.of_token)

    def gain(self, chance: float, length: int) -> float:
        """How many times as fast a reply is with drafts of this length.

        If each drafted token is accepted with the chance a while all before it are, a draft of n
        tokens gives 1 + a + ... + a^n tokens.
        """
        if not length:
            return 1.0
        return sum(chance**number for number in range(length + 1)) / self.steps(length)

    def best_length(self, chance: float, most_tokens: int) -> int:
        """The length of the draft that saves most time; 0 if none does."""
        best, best_gain, tokens = 0, 1.0, 1.0
        for length in range(1, most_tokens + 1):
            tokens += chance**length
            gain = tokens / self.steps(length)
            if gain > best_gain:
                best, best_gain = length, gain
        return best


def draft_cost(speed: SpeedEstimate, draft: SpeedEstimate) -> DraftCost:
    """The planned cost of a token that a model with the speed `draft` drafts for another one.

    Each further row reads other experts of a mixture.
    """
    cost = speed.decode.expected / draft.decode.expected
    read_bytes = expert_bytes = 0.0
    for work in speed.work:
        chosen_bytes = speed.chosen_share * work.expert_bytes
        read_bytes += work.weight_bytes + chosen_bytes
        expert_bytes += chosen_bytes
    row = ROW_COST + (expert_bytes / read_bytes if read_bytes else 0.0)
    return DraftCost(cost, row, STEP_S * speed.decode.expected)

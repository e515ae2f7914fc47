"""What drafts of several tokens save, by what they cost and how often they are accepted."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from mrs.graph.step_rows import MAX_DRAFT_ROWS
from mrs.plan.speed.roofline import ROWS_TOGETHER

if TYPE_CHECKING:
    from mrs.plan.speed.roofline import SpeedEstimate

#: How many times as long as a step of one row those of 1, 2 and more take where no plan says it.
_USUAL_ROWS = tuple(
    1 + 0.05 * further + 0.25 * (further // ROWS_TOGETHER) for further in range(MAX_DRAFT_ROWS)
)
#: Of a step of one row, what a further one takes at least.
_LEAST_ROW = 0.02
#: What a draft adds to a step beside its tokens: the interpreter's part, which only matters where
#: steps are shorter than a millisecond.
STEP_S = 0.15e-3
#: The chance that a drafted token is accepted, as it is assumed before any is known.
FIRST_CHANCE = 0.75


class DraftCost(NamedTuple):
    """What drafts cost, in steps without a draft, of so many `sequences` together.

    To `draft` a token; and for each step with drafts, a `step`. A step of n rows takes
    `row_costs[n - 1]` times as long as one of a single row: each row of a mixture reads experts
    that no other has read. If the model `recomputes`, the step after a rejected draft has further
    rows: a state cannot drop tokens. `factors` are pairs of a length and how many times as long as
    by all these its steps take: what was measured. Without draft `heads` a model drafts.
    """

    draft: float
    step: float = 0.0
    row_costs: tuple[float, ...] = _USUAL_ROWS
    recomputes: bool = False
    factors: tuple[tuple[int, float], ...] = ()
    sequences: int = 1
    heads: int = 0

    @property
    def most_tokens(self) -> int:
        """The tokens of the longest draft: of several heads, one of each."""
        return self.heads if self.heads > 1 else MAX_DRAFT_ROWS - 1

    def of(self, sequences: int) -> DraftCost:
        """The cost for each of so many sequences, which share all but their rows."""
        return self._replace(sequences=sequences)

    def rows(self, count: int) -> float:
        """How many times as long as one of a single row a step of `count` rows takes."""
        return self.row_costs[min(count, len(self.row_costs)) - 1]

    def planned_steps(self, length: int) -> float:
        """As `steps`, before any is measured."""
        rows = self._rows_of_each(1 + length)
        return rows + self.step + self.draft * self._drafting(length)

    def _rows_of_each(self, count: int) -> float:
        """How many times as long as with one row of each sequence a step takes with so many."""
        return self.rows(self.sequences * count) / self.rows(self.sequences)

    def _drafting(self, length: int) -> float:
        """Steps of the drafting model for a draft; heads read again what the model has computed."""
        if self.heads > 1:
            return self.heads * self._rows_of_each(length + self.heads)
        return length - 1 + self._rows_of_each(1 + length) if self.heads else length

    def steps(self, length: int) -> float:
        """How many steps without a draft a step with one of this length takes."""
        planned, least = self.planned_steps(length), 1 + length * (self.draft + _LEAST_ROW)
        if not self.factors:
            return planned
        _, factor = min(self.factors, key=lambda pair: abs(pair[0] - length))
        return max(factor * planned, least)  # or what it was compared with was disturbed

    @property
    def rejected(self) -> float:
        """The further steps that the rejection of a draft costs."""
        return self.steps(1) - self.draft - 1 if self.recomputes else 0.0

    def gain(self, chance: float, length: int) -> float:
        """How many times as fast a reply is with drafts of this length.

        If each drafted token is accepted with the chance a while all before it are, a draft of n
        tokens gives 1 + a + ... + a^n tokens.
        """
        if not length:
            return 1.0
        tokens = sum(chance**number for number in range(length + 1))
        return tokens / (self.steps(length) + (1 - chance**length) * self.rejected)

    def best_length(self, chance: float, most_tokens: int) -> int:
        """The length of the draft that saves most time; 0 if none does."""
        best, best_gain, tokens, share = 0, 1.0, 1.0, 1.0
        rejected = self.rejected
        for length in range(1, min(most_tokens, self.most_tokens) + 1):
            share *= chance
            tokens += share
            gain = tokens / (self.steps(length) + (1 - share) * rejected)
            if gain > best_gain:
                best, best_gain = length, gain
        return best

    def least_length(self, most_tokens: int) -> int:
        """The length of the shortest draft that saves time if it is accepted; 0 if none does."""
        lengths = range(1, min(most_tokens, self.most_tokens) + 1)
        return next((length for length in lengths if self.steps(length) < 1 + length), 0)

    @property
    def trial(self) -> float:
        """The steps that are lost with such a draft if it is rejected."""
        length = self.least_length(self.most_tokens)
        return self.steps(length) - 1 + self.rejected if length else inf


#: Of drafts that take no time, of a model without experts.
NO_COST = DraftCost(0.0)


class DraftGain(NamedTuple):
    """Replies are so many times as fast where such a share of drafted tokens is accepted.

    It `is_measured` by earlier runs, or else what the cost and a usual share say.
    """

    factor: float
    accepted_share: float
    is_measured: bool


def draft_cost(
    speed: SpeedEstimate, draft: SpeedEstimate | None = None, heads: int = 0
) -> DraftCost:
    """The planned cost of drafts of a model, or of `heads`, with the speed `draft` for another one.

    Without, drafts are looked up, which takes no time.
    """
    step_s = speed.rows_seconds(1)
    rows = (speed.rows_seconds(count) for count in range(1, MAX_DRAFT_ROWS + 1))
    return DraftCost(
        draft=0.0 if draft is None else draft.rows_seconds(1) / step_s,
        step=STEP_S / step_s,
        row_costs=tuple(seconds / step_s for seconds in rows),
        recomputes=speed.has_states,
        heads=heads,
    )

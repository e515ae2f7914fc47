"""What drafts the next tokens of sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as ReadOnlyList
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from mrs.engine.draft_allowance import DraftAllowance, SharedAllowance
from mrs.engine.draft_pace import DraftPace
from mrs.engine.prompt_lookup import PromptLookup
from mrs.engine.sampling.processors import FloatArray
from mrs.engine.sequence import ScheduledBatch, Sequence
from mrs.graph.step_rows import MAX_DRAFT_ROWS
from mrs.plan.speed.draft_gain import DraftCost

if TYPE_CHECKING:
    from mrs.model.native_layers import NativeSteps


class VerifiedDrafts(Protocol):
    """Drafts that a step has verified, and that others follow; see `DraftBurst`."""

    #: The steps so far.
    num_steps: int

    @property
    def may_go_on(self) -> bool:
        """Whether all sequences go on, and others may follow."""

    def logits(self) -> ReadOnlyList[FloatArray]:
        """Those of each sequence, (1 + draft, vocab), which are overwritten."""

    def draft(self) -> None:
        """Draft again, after the tokens that were chosen."""

    def verify(self) -> None:
        """Compute the last tokens and their drafts."""

    def end(self) -> None:
        """Leave all as a general step does."""


class Drafter(Protocol):
    """Guesses the next tokens of sequences, which a step then computes with the last one."""

    @property
    def plain_s(self) -> float | None:
        """What a step without a draft takes, of a sequence alone; None until it is measured."""
        return None

    def draft(self, wanted: Mapping[Sequence, int]) -> None:
        """Set `draft` of these sequences to at most so many tokens, or leave it empty.

        If they were drawn at random, `proposals` are the probabilities that they were drawn with.
        """

    def may_draft(self, sequence: Sequence) -> bool:
        """Whether the next step may have a draft of a sequence. Cheap to ask."""

    def taker(self, batch: ScheduledBatch) -> Callable[[Tensor], None] | None:
        """What takes the target's states (N, hidden) of a step, if the drafter reads them."""
        return None

    def learn(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Adapt later drafts to how many tokens of the last one were accepted."""

    def measure(self, batch: ScheduledBatch, drafted: int, seconds: float, steps: int) -> None:
        """Learn what some steps took, with this batch of sequences that decode and their drafts.

        `drafted` are the tokens of all drafts, which the time to make them is a part of.
        """

    def can_burst(self, batch: ScheduledBatch) -> bool:
        """Whether drafts like those of this batch may follow it with nothing between."""
        return False

    def burst(
        self, batch: ScheduledBatch, verified: NativeSteps, room_tokens: int
    ) -> VerifiedDrafts | None:
        """Go on so after a step that has `verified` these drafts; so many tokens fit the blocks."""
        return None

    def free(self, sequence: Sequence) -> None:
        """Free the memory of a sequence that has ended or waits again."""


class LookupDrafter(Drafter):
    """Drafts by prompt lookup, which takes no time: only further rows of steps cost some."""

    def __init__(self, cost: DraftCost) -> None:
        self._pace = DraftPace(cost)
        self._shared = SharedAllowance()
        self._allowances: dict[Sequence, DraftAllowance] = {}
        self._num_decoding = 1

    @property
    def plain_s(self) -> float | None:
        return self._pace.plain_s

    def draft(self, wanted: Mapping[Sequence, int]) -> None:
        self._num_decoding = max(len(wanted), 1)
        for sequence, most_tokens in wanted.items():
            if sequence.lookup is None:
                sequence.lookup = PromptLookup()
            sequence.draft = sequence.lookup.draft(sequence.token_ids, most_tokens)
            if sequence.draft:
                del sequence.draft[self._most_tokens(sequence, len(sequence.draft)) :]

    def _most_tokens(self, sequence: Sequence, wanted: int) -> int:
        allowance = self._allowances.get(sequence)
        if allowance is None:
            allowance = self._shared.begin(self._pace.usual.chance)
            self._allowances[sequence] = allowance
        return allowance.most_tokens(self._cost, sequence.num_new_tokens, wanted)

    @property
    def _cost(self) -> DraftCost:
        return self._pace.cost(self._num_decoding)

    def may_draft(self, sequence: Sequence) -> bool:
        if sequence.lookup is None:
            return True
        found = sequence.lookup.draft(sequence.token_ids, MAX_DRAFT_ROWS - 1)
        return bool(found) and self._most_tokens(sequence, len(found)) > 0

    def learn(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        if sequence.lookup is not None:
            sequence.lookup.learn(drafted, accepted)
        if sequence in self._allowances:
            self._allowances[sequence].learn(self._cost, drafted, accepted)
            self._pace.usual.learn(drafted, accepted)

    def measure(self, batch: ScheduledBatch, drafted: int, seconds: float, steps: int) -> None:
        self._pace.add(len(batch), drafted, seconds, steps)

    def free(self, sequence: Sequence) -> None:
        """The lookup itself belongs to the sequence."""
        allowance = self._allowances.pop(sequence, None)
        if allowance is not None:
            self._shared.end(allowance, sequence.num_new_tokens)

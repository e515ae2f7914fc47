"""What drafts the next tokens of sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from mrs.engine.prompt_lookup import PromptLookup
from mrs.engine.sequence import ScheduledBatch, Sequence

if TYPE_CHECKING:
    from mrs.engine.draft_burst import DraftBurst
    from mrs.model.native_layers import NativeSteps


class Drafter(Protocol):
    """Guesses the next tokens of sequences, which a step then computes with the last one."""

    def draft(self, wanted: Mapping[Sequence, int]) -> None:
        """Set `draft` of these sequences to at most so many tokens, or leave it empty.

        If they were drawn at random, `proposals` are the probabilities that they were drawn with.
        """

    def may_draft(self, sequence: Sequence) -> bool:
        """Whether the next step may have a draft of a sequence. Cheap to ask."""

    def taker(self, batch: ScheduledBatch) -> Callable[[Tensor], None] | None:
        """What takes the target's states (N, hidden) of a step, if the drafter reads them."""

    def learn(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Adapt later drafts to how many tokens of the last one were accepted."""

    def measure(self, batch: ScheduledBatch, drafted: int, seconds: float, steps: int) -> None:
        """Learn what some steps took, with this batch of sequences that decode and their drafts.

        `drafted` are the tokens of all drafts, which the time to make them is a part of.
        """

    def can_burst(self, batch: ScheduledBatch) -> bool:
        """Whether drafts like those of this batch may follow it with nothing between."""

    def burst(
        self, batch: ScheduledBatch, verified: NativeSteps, room_tokens: int
    ) -> DraftBurst | None:
        """Go on so after steps that have `verified` these drafts; see `DraftBurst`."""

    def free(self, sequence: Sequence) -> None:
        """Free the memory of a sequence that has ended or waits again."""


class LookupDrafter:
    """Drafts by prompt lookup."""

    def draft(self, wanted: Mapping[Sequence, int]) -> None:
        for sequence, most_tokens in wanted.items():
            if sequence.lookup is None:
                sequence.lookup = PromptLookup()
            sequence.draft = sequence.lookup.draft(sequence.token_ids, most_tokens)

    def may_draft(self, sequence: Sequence) -> bool:
        return sequence.lookup is None or bool(sequence.lookup.draft(sequence.token_ids, 1))

    def taker(self, batch: ScheduledBatch) -> Callable[[Tensor], None] | None:
        return None

    def learn(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        if sequence.lookup is not None:
            sequence.lookup.learn(drafted, accepted)

    def measure(self, batch: ScheduledBatch, drafted: int, seconds: float, steps: int) -> None:
        """Its drafts cost nothing to make."""

    def can_burst(self, batch: ScheduledBatch) -> bool:
        return False

    def burst(
        self, batch: ScheduledBatch, verified: NativeSteps, room_tokens: int
    ) -> DraftBurst | None:
        return None

    def free(self, sequence: Sequence) -> None:
        """The lookup belongs to the sequence."""

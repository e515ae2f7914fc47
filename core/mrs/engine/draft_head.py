"""Drafts the next tokens of sequences with the model's own draft head.

At position t the head reads token t + 1 and the target's state after token t. The target hands its
states out as it computes them, and they wait until the head has a draft to make, or until they are
many. Where the head goes on from its own draft, it reads its own states; once the target has
computed the same positions, the head reads them again with the target's.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mrs.engine.cache_manager import CacheManager
from mrs.engine.draft_burst import DraftBurst
from mrs.engine.draft_length import DraftLength
from mrs.engine.draft_model import Draft, DraftModel
from mrs.engine.drafter import LookupDrafter, VerifiedDrafts
from mrs.engine.sampling.processors import FloatArray
from mrs.engine.sequence import ScheduledBatch, Sequence
from mrs.engine.worker import StepAborted
from mrs.layers.joined_input.memory import MOST_UNREAD

if TYPE_CHECKING:
    from mrs.model.native_layers import NativeSteps


@dataclass
class HeadDraft(Draft):
    """A draft of the head, which has read the target's states of `num_read` positions from `start`.

    `unread` are the states (n, hidden) of those after them, and `own` is the head's own state
    (1, hidden) after the last token that it has computed. `seen_tokens` is the length of the
    sequence when a draft was last wanted.
    """

    start: int = 0
    num_read: int = 0
    seen_tokens: int = 0
    unread: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    own: Tensor = field(default_factory=lambda: torch.empty(0, 0))

    @property
    def next_position(self) -> int:
        """The first position without a state."""
        return self.start + self.num_read + len(self.unread)

    def forget_from(self, position: int) -> None:
        """Forget unread states from a position on: those of a draft that was not accepted."""
        self.unread = self.unread[: max(position - self.start - self.num_read, 0)]

    def follow(self, caches: CacheManager) -> None:
        """Take over the tokens of the sequence; the cache keeps what it has read of the target."""
        copy = self.copy
        copy.token_ids = self.owner.token_ids[self.start + 1 :]
        copy.num_prompt_tokens = len(copy.token_ids)
        copy.num_computed_tokens = min(copy.num_computed_tokens, self.num_read)
        caches.drop_rejected(copy)
        self.proposals = []


class DraftHead(DraftModel):
    """Runs the draft head for all sequences at once, a token of each draft a forward pass.

    A sequence whose first positions came from the prefix cache is read from the next one on, and
    so is one after a pause, which costs nothing: drafts are then made with less of the text. Where
    a text repeats itself, prompt lookup drafts.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._lookup = LookupDrafter(self.pace.planned._replace(draft=0.0))
        #: The sequences whose last draft was looked up.
        self._repeating: set[Sequence] = set()

    def draft(self, wanted: abc.Mapping[Sequence, int]) -> None:
        self._lookup.draft(wanted)
        self._repeating = {sequence for sequence in wanted if sequence.draft}
        super().draft({each: most for each, most in wanted.items() if not each.draft})

    def learn(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        if sequence in self._repeating:
            self._lookup.learn(sequence, drafted, accepted)
        else:
            super().learn(sequence, drafted, accepted)

    def measure(self, batch: ScheduledBatch, drafted: int, seconds: float, steps: int) -> None:
        if not drafted or not self._repeating:
            super().measure(batch, drafted, seconds, steps)
        if not drafted or self._repeating.issuperset(sequence for sequence, _ in batch):
            self._lookup.measure(batch, drafted, seconds, steps)

    def free(self, sequence: Sequence) -> None:
        super().free(sequence)
        self._lookup.free(sequence)

    def can_burst(self, batch: ScheduledBatch) -> bool:
        if not self._worker.has_read_steps:
            return False
        return all(self._is_ready_to_burst(sequence) for sequence, _ in batch)

    def _is_ready_to_burst(self, sequence: Sequence) -> bool:
        """Whether the head has made the draft of a sequence, and nothing but a draft may follow."""
        draft = self._drafts.get(sequence)
        if draft is None or not sequence.draft or sequence in self._repeating:
            return False
        is_read = isinstance(draft, HeadDraft) and not len(draft.unread)
        return is_read and not sequence.sampler.has_constraint and not sequence.prompt_scores

    def burst(
        self, batch: ScheduledBatch, verified: NativeSteps, room_tokens: int
    ) -> VerifiedDrafts | None:
        heads = [self._of(sequence) for sequence, _ in batch]

        def choose(index: int, logits: FloatArray) -> None:
            self.choose(heads[index], logits)

        return DraftBurst(heads, verified, room_tokens, self.caches, self.steps, choose)

    def steps(self, batch: ScheduledBatch, most_tokens: int, states: Tensor) -> NativeSteps | None:
        """The head's, which read `states` (N, hidden) first."""
        return self._worker.steps(batch, most_tokens, states=states)

    def may_draft(self, sequence: Sequence) -> bool:
        draft = self._drafts.get(sequence)
        is_paused = draft is not None and draft.length.paused_steps > 0
        return not is_paused or self._lookup.may_draft(sequence)

    def taker(self, batch: ScheduledBatch) -> Callable[[Tensor], None] | None:
        if not any(self._reads(sequence) for sequence, _ in batch):
            return None

        def take(states: Tensor) -> None:
            first = 0
            for sequence, num_tokens in batch:
                if self._reads(sequence):
                    self._take(sequence, states[first : first + num_tokens])
                first += num_tokens
            self._read_long()

        return take

    def _reads(self, sequence: Sequence) -> bool:
        """Whether states of a sequence are wanted: not in a pause."""
        draft = self._drafts.get(sequence)
        if draft is not None:
            return not draft.length.paused_steps
        may_begin = len(self._drafts) < self.caches.planned_sequences
        return may_begin and sequence.makes_reply and not sequence.images

    def _take(self, sequence: Sequence, states: Tensor) -> None:
        """Keep the states (T, hidden) of the next tokens of a sequence."""
        first, draft = sequence.num_computed_tokens, self._of(sequence)
        draft.forget_from(first)
        if draft.next_position < first:
            draft = self._restarted(draft, first)
        new = states[draft.next_position - first :]
        draft.unread = torch.cat([draft.unread, new]) if len(draft.unread) else new.clone()

    def _of(self, sequence: Sequence) -> HeadDraft:
        draft = self._drafts.get(sequence)
        if draft is None:
            copy = Sequence([], 0, 0, sequence.sampler)
            draft = HeadDraft(sequence, copy, DraftLength(self.pace))
            draft.start = sequence.num_computed_tokens
            self._drafts[sequence] = draft
        assert isinstance(draft, HeadDraft)
        return draft

    def _restarted(self, draft: HeadDraft, start: int) -> HeadDraft:
        """The same sequence, whose states are read from `start` on."""
        self.caches.invalidate(draft.copy)
        copy = Sequence([], 0, 0, draft.owner.sampler)
        new = HeadDraft(draft.owner, copy, draft.length, start=start)
        new.seen_tokens = draft.seen_tokens
        self._drafts[draft.owner] = new
        return new

    def _read_long(self) -> None:
        """Read the states of sequences that have many: those of prompts."""
        for sequence in [*self._drafts]:
            draft = self._of(sequence)
            if len(draft.unread) > MOST_UNREAD:
                try:
                    self._read(draft)
                except StepAborted:
                    self.free(sequence)

    def _read(self, draft: HeadDraft) -> None:
        """Read the unread states whose next token is known."""
        draft.wanted = 0
        draft.follow(self.caches)
        left = min(len(draft.copy.token_ids) - draft.num_read, len(draft.unread))
        if not self._has_room(draft):
            self.free(draft.owner)
            return
        while left:
            count = min(left, self._chunk_tokens)
            self._forward([(draft, count)])
            left -= count

    def _begin(self, sequence: Sequence, most_tokens: int) -> Draft | None:
        """The draft of a sequence whose states are all there, ready to be extended."""
        draft = self._drafts.get(sequence)
        if not isinstance(draft, HeadDraft):
            return None
        draft.forget_from(sequence.num_computed_tokens)
        fitting = min(most_tokens, self._context_tokens - len(sequence.token_ids) - 1)
        passed = len(sequence.token_ids) - draft.seen_tokens
        draft.seen_tokens += passed
        draft.wanted = 0
        if fitting > 0:
            draft.wanted = draft.length.next(fitting, passed, self._num_decoding)
        is_ready = len(draft.unread) and draft.next_position == sequence.num_computed_tokens
        if not draft.wanted or not is_ready:
            return None
        draft.follow(self.caches)
        return draft if self._has_room(draft) else None

    def _compute(
        self,
        batch: abc.Sequence[tuple[Draft, int]],
        scheduled: ScheduledBatch,
        check: Callable[[], None],
    ) -> Tensor:
        heads = [(draft, count) for draft, count in batch if isinstance(draft, HeadDraft)]
        states = [
            draft.unread[:count] if len(draft.unread) else draft.own for draft, count in heads
        ]
        kept: list[Tensor] = []
        logits = self._worker.forward(scheduled, check, states=torch.cat(states), keep=kept.append)
        end = 0
        for draft, count in heads:
            end += count
            if len(draft.unread):
                draft.unread = draft.unread[count:].clone()  # the rest would stay in memory
                draft.num_read += count
            draft.own = kept[0][end - 1 : end].clone()
        return logits

    def _steps(
        self, drafts: abc.Sequence[Draft], scheduled: ScheduledBatch, most_tokens: int
    ) -> NativeSteps | None:
        heads = [draft for draft in drafts if isinstance(draft, HeadDraft)]
        own = torch.cat([draft.own for draft in heads])
        steps = self.steps(scheduled, most_tokens, own)
        if steps is not None:  # they go on there, in the same memory
            for row, draft in enumerate(heads):
                draft.own = steps.states[row : row + 1]
        return steps

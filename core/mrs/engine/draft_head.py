"""Drafts the next tokens of sequences with the model's own draft heads.

At position t the first head reads token t + 1 and the target's state after token t. The target
hands its states out as it computes them, and they wait until the heads have a draft to make, or
until they are many. A head that is alone goes on from its own draft by reading its own states; once
the target has computed the same positions, the head reads them again with the target's.

Of several heads each drafts a token: after the same positions, the next one reads the tokens that
follow those which the one before has read, the last of them drafted. Those positions it reads
again, too, once their tokens are known.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from mrs.engine.cache_manager import CacheManager
from mrs.engine.draft_burst import DraftBurst
from mrs.engine.draft_length import DraftLength
from mrs.engine.draft_model import Draft, DraftModel
from mrs.engine.drafter import LookupDrafter, VerifiedDrafts
from mrs.engine.sampling.processors import FloatArray
from mrs.engine.sequence import ScheduledBatch, ScheduledSequence, Sequence
from mrs.engine.worker import StepAborted, Worker
from mrs.layers.joined_input.memory import MOST_UNREAD

if TYPE_CHECKING:
    from mrs.model.native_layers import NativeSteps


@dataclass
class HeadDraft(Draft):
    """A draft of heads, which have read the target's states of `num_read` positions from `start`.

    `unread` are the states (n, hidden) of those after them, and `own` is the head's own state
    (1, hidden) after the last token that it has computed. `further` are the copies of the sequence
    in further heads. `seen_tokens` is the length of the sequence when a draft was last wanted.
    """

    start: int = 0
    num_read: int = 0
    seen_tokens: int = 0
    unread: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    own: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    further: list[Sequence] = field(default_factory=list)

    @property
    def copies(self) -> list[Sequence]:
        """The sequence in each head."""
        return [self.copy, *self.further]

    @property
    def next_position(self) -> int:
        """The first position without a state."""
        return self.start + self.num_read + len(self.unread)

    @property
    def num_known(self) -> int:
        """How many positions from `start` all heads can read with known tokens."""
        return max(len(self.owner.token_ids) - len(self.copies) - self.start, self.num_read)

    def forget_from(self, position: int) -> None:
        """Forget unread states from a position on: those of a draft that was not accepted."""
        self.unread = self.unread[: max(position - self.start - self.num_read, 0)]

    def follow(self, caches: CacheManager) -> None:
        """Take over the tokens of the sequence; the cache keeps what it has read of the target."""
        self.proposals = []
        self.rewind(0, caches)

    def rewind(self, head: int, caches: CacheManager) -> Sequence:
        """The copy in a head, with the tokens that it reads, of which it has read `num_read`."""
        copy = self.copies[head]
        drafted = [proposal.token for proposal in self.proposals[:head]]
        copy.token_ids = [*self.owner.token_ids, *drafted][self.start + 1 + head :]
        copy.num_prompt_tokens = len(copy.token_ids)
        copy.num_computed_tokens = min(copy.num_computed_tokens, self.num_read)
        caches.drop_rejected(copy)
        return copy


class Reading(NamedTuple):
    """The next positions of a draft that heads read, `states` (n, hidden)."""

    draft: HeadDraft
    states: Tensor


class DraftHead(DraftModel):
    """Runs the draft heads for all sequences at once, a token of each draft a forward pass.

    A sequence whose first positions came from the prefix cache is read from the next one on, and
    so is one after a pause, which costs nothing: drafts are then made with less of the text. Where
    a text repeats itself, prompt lookup drafts.
    """

    def __init__(
        self,
        worker: Worker,
        caches: CacheManager,
        *,
        further: abc.Sequence[tuple[Worker, CacheManager]] = (),
        is_chained: bool = False,
        **settings: Any,
    ) -> None:
        """With `further` heads, which read states of the one before if it `is_chained`."""
        super().__init__(worker, caches, **settings)
        self._heads = [(worker, caches), *further]
        self._is_chained = is_chained
        self._lookup = LookupDrafter(self.pace.planned._replace(draft=0.0, heads=0))
        #: The sequences whose last draft was looked up.
        self._repeating: set[Sequence] = set()

    def draft(self, wanted: abc.Mapping[Sequence, int]) -> None:
        self._lookup.draft(wanted)
        self._repeating = {sequence for sequence in wanted if sequence.draft}
        if len(self._repeating) < len(wanted):
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
        self._lookup.free(sequence)
        if sequence in self._drafts:
            self._invalidate(self._of(sequence))
            del self._drafts[sequence]

    def _invalidate(self, draft: HeadDraft) -> None:
        for copy, (_, caches) in zip(draft.copies, self._heads, strict=True):
            caches.invalidate(copy)

    def can_burst(self, batch: ScheduledBatch) -> bool:
        if len(self._heads) > 1 or not self._worker.has_read_steps:
            return False
        return all(self._is_ready_to_burst(sequence) for sequence, _ in batch)

    def _is_ready_to_burst(self, sequence: Sequence) -> bool:
        """Whether the head has made the draft of a sequence, and nothing but a draft may follow."""
        draft = self._drafts.get(sequence)
        if draft is None or not sequence.draft or sequence in self._repeating:
            return False
        if draft.length.is_trial:
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
        if draft is None or not draft.length.paused_steps:
            return True
        return self._lookup.may_draft(sequence)

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
        return self.pace.is_known and not self.pace.paused_steps and self._may_begin(sequence)

    def _may_begin(self, sequence: Sequence) -> bool:
        """Whether there is memory for the drafts of a further sequence, and it has any."""
        has_room = len(self._drafts) < self.caches.planned_sequences
        return has_room and sequence.makes_reply and not sequence.images

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
            length = DraftLength(self.pace)
            return self._new(sequence, length, sequence.num_computed_tokens)
        assert isinstance(draft, HeadDraft)
        return draft

    def _new(self, sequence: Sequence, length: DraftLength, start: int) -> HeadDraft:
        """The draft of a sequence whose states are read from `start` on."""
        copy, *further = (Sequence([], 0, 0, sequence.sampler) for _ in self._heads)
        draft = HeadDraft(sequence, copy, length, start=start, further=further)
        draft.seen_tokens = sequence.num_prompt_tokens  # a pause passes by the tokens of replies
        self._drafts[sequence] = draft
        return draft

    def _restarted(self, draft: HeadDraft, start: int) -> HeadDraft:
        """The same sequence, whose states are read from `start` on."""
        self._invalidate(draft)
        new = self._new(draft.owner, draft.length, start)
        new.seen_tokens = draft.seen_tokens
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
        """Read the unread states whose next tokens are known."""
        draft.wanted = 0
        draft.follow(self.caches)
        if not self._has_room(draft):
            self.free(draft.owner)
            return
        self._read_until(draft, draft.num_known)

    def _read_until(self, draft: HeadDraft, end: int) -> None:
        """Read the states of all positions before `end`, a chunk at a time."""
        while len(draft.unread) and draft.num_read < end:
            states = draft.unread[: min(end - draft.num_read, self._chunk_tokens)]
            reading = Reading(draft, states)
            for head in range(len(self._heads)):
                _, own = self._read_in(head, [reading])
                reading = reading._replace(states=own[0]) if self._is_chained else reading
            self._count_read(draft)

    def _read_in(
        self, head: int, readings: abc.Sequence[Reading]
    ) -> tuple[FloatArray, abc.Sequence[Tensor]]:
        """Compute positions in a head.

        The logits (W, V) of the drafts that have no further ones, and the head's own states of all.
        """
        worker, caches = self._heads[head]
        scheduled = []
        for draft, states in readings:
            copy = draft.rewind(head, caches)
            caches.mark(copy)
            scheduled.append(ScheduledSequence(copy, len(states)))
        kept: list[Tensor] = []
        drafts = [(draft, len(states)) for draft, states in readings]
        logits = worker.forward(
            scheduled,
            lambda: self._check(drafts),
            states=torch.cat([states for _, states in readings]),
            keep=kept.append,
        )
        for copy, count in scheduled:
            copy.num_computed_tokens += count
        return logits.numpy(), torch.split(kept[0], [count for _, count in scheduled])

    def _count_read(self, draft: HeadDraft) -> None:
        """Count what all heads have read of a draft with known tokens."""
        read = min(draft.copy.num_computed_tokens, draft.num_known) - draft.num_read
        draft.unread = draft.unread[read:].clone()  # the rest would stay in memory
        draft.num_read += read

    def _begin(self, sequence: Sequence, most_tokens: int) -> Draft | None:
        """The draft of a sequence whose states are all there, ready to be extended."""
        if sequence not in self._drafts and not self._may_begin(sequence):
            return None
        draft = self._of(sequence)
        fitting = min(most_tokens, self._context_tokens - len(sequence.token_ids) - 1)
        if len(self._heads) > 1:
            fitting = min(fitting, len(self._heads))
        passed = len(sequence.token_ids) - draft.seen_tokens
        draft.seen_tokens += passed
        draft.wanted = 0
        if fitting > 0:
            draft.wanted = draft.length.next(fitting, passed, self._num_decoding)
        if not draft.wanted:
            return None
        draft.forget_from(sequence.num_computed_tokens)
        is_ready = len(draft.unread) and draft.next_position == sequence.num_computed_tokens
        if not is_ready:
            return None
        draft.follow(self.caches)
        return draft if self._has_room(draft) else None

    def _has_room(self, draft: Draft) -> bool:
        if not super()._has_room(draft):
            return False
        for copy, (_, caches) in zip(self._of(draft.owner).further, self._heads[1:], strict=True):
            if copy.cache is None:
                caches.allocate(copy)
        return True

    def _extend(self, drafts: abc.Iterable[Draft]) -> None:
        """Read the unread states, which are few, and draft the wanted tokens."""
        left, readings = self._chunk_tokens, [list[Reading]()]
        for draft in drafts:
            assert isinstance(draft, HeadDraft)
            if len(draft.unread) > self._chunk_tokens:
                self._read_until(draft, draft.num_known - 1)
            if len(draft.unread) > left:
                left = self._chunk_tokens
                readings.append([])
            readings[-1].append(Reading(draft, draft.unread))
            left -= len(draft.unread)
        for each in readings:
            self._draft_after_reading(each)

    def _draft_after_reading(self, readings: list[Reading]) -> None:
        """Draft with each head; all read the same positions."""
        if not readings:
            return
        drafts = [draft for draft, _ in readings]
        for head in range(len(self._heads)):
            logits, own = self._read_in(head, readings)
            for draft, row in zip(drafts, logits, strict=True):
                self.choose(draft, row)
            if self._is_chained:
                readings = [Reading(draft, each) for draft, each in zip(drafts, own, strict=True)]
        for draft, each in zip(drafts, own, strict=True):
            draft.own = each[-1:].clone()
            self._count_read(draft)
            del draft.copy.token_ids[draft.copy.num_prompt_tokens + draft.wanted :]
            del draft.proposals[draft.wanted :]
        if len(self._heads) == 1:
            self._go_on([*drafts])

    def _compute(
        self,
        batch: abc.Sequence[tuple[Draft, int]],
        scheduled: ScheduledBatch,
        check: Callable[[], None],
    ) -> Tensor:
        """The logits (B, V) after the heads' own drafts, read with their own states."""
        heads = [draft for draft, _ in batch if isinstance(draft, HeadDraft)]
        states, kept = torch.cat([draft.own for draft in heads]), list[Tensor]()
        logits = self._worker.forward(scheduled, check, states=states, keep=kept.append)
        for draft, own in zip(heads, torch.split(kept[0], 1), strict=True):
            draft.own = own.clone()
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

"""Drafts the next tokens of sequences with a smaller model of the same vocabulary."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from mrs.engine.draft_length import DraftLength
from mrs.engine.draft_pace import DraftPace
from mrs.engine.drafter import Drafter
from mrs.engine.sampling.processors import FloatArray
from mrs.engine.sampling.sampler import Proposal
from mrs.engine.sequence import ScheduledBatch, ScheduledSequence, Sequence
from mrs.engine.worker import StepAborted, Worker
from mrs.plan.speed.draft_gain import DraftCost

if TYPE_CHECKING:
    from mrs.engine.cache_manager import CacheManager
    from mrs.model.native_layers import NativeSteps


@dataclass
class Draft:
    """What is drafted of a sequence, its `owner`.

    `copy` is the sequence in the draft model: its prompt is all that the sequence has, and its
    reply is the draft, of which `wanted` tokens are wanted.
    """

    owner: Sequence
    copy: Sequence
    length: DraftLength
    wanted: int = 0
    proposals: list[Proposal] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return self.copy.num_new_tokens >= self.wanted

    def follow(self, caches: CacheManager) -> None:
        """Take over the tokens of the sequence; the cache drops what it has of others."""
        copy, tokens = self.copy, self.owner.token_ids
        end = min(copy.num_computed_tokens, len(tokens) - 1)
        same = min(copy.num_prompt_tokens, end)
        while same < end and copy.token_ids[same] == tokens[same]:
            same += 1
        copy.token_ids, copy.num_prompt_tokens = list(tokens), len(tokens)
        copy.num_computed_tokens = min(copy.num_computed_tokens, same)
        caches.drop_rejected(copy)
        if not caches.can_rewind(copy, 0):  # its rope factors have changed
            caches.invalidate(copy)
        self.proposals = []

    def choose(self, logits: FloatArray, rng: Random) -> None:
        """Add a token after logits (V,), which are overwritten."""
        proposal = self.copy.sampler.propose(logits, rng)
        self.copy.token_ids.append(proposal.token)
        self.proposals.append(proposal)


class DraftModel(Drafter):
    """Runs the draft model for all sequences at once, a token of each draft a forward pass.

    Its caches are of the size that was planned: sequences beyond it have no drafts, and neither
    have those with images. A token of a draft takes `cost` times as long as a step of the large
    model, whose logits have `vocab_size` values.
    """

    def __init__(
        self,
        worker: Worker,
        caches: CacheManager,
        *,
        chunk_tokens: int,
        context_tokens: int,
        vocab_size: int,
        cost: DraftCost,
    ) -> None:
        self._worker = worker
        self.caches = caches
        self._chunk_tokens = chunk_tokens
        self._context_tokens = context_tokens
        self._vocab_size = vocab_size
        self.pace = DraftPace(cost)
        #: How many sequences the next step has drafts of, or could have.
        self._num_decoding = 1
        self._drafts: dict[Sequence, Draft] = {}
        self._rng = Random()

    def draft(self, wanted: Mapping[Sequence, int]) -> None:
        """As `Drafter.draft`. A sequence whose prompt is long has a draft some steps later."""
        self._num_decoding = len(wanted)
        if not self.pace.may_draft(len(wanted)):
            return
        drafts = [
            draft
            for sequence, most_tokens in wanted.items()
            if (draft := self._begin(sequence, most_tokens)) is not None
        ]
        if not drafts:
            return
        try:
            self._extend(drafts)
        except BaseException as error:
            for draft in drafts:
                self.free(draft.owner)
            if isinstance(error, StepAborted):  # the step itself ends them
                return
            raise
        for draft in drafts:
            draft.owner.draft = draft.copy.token_ids[draft.copy.num_prompt_tokens :]
            if any(proposal.probabilities is not None for proposal in draft.proposals):
                draft.owner.proposals = draft.proposals

    @property
    def plain_s(self) -> float | None:
        return self.pace.plain_s

    def may_draft(self, sequence: Sequence) -> bool:
        return True

    def learn(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        if sequence in self._drafts:
            self._drafts[sequence].length.learn(drafted, accepted)

    def measure(self, batch: ScheduledBatch, drafted: int, seconds: float, steps: int) -> None:
        self.pace.add(len(batch), drafted, seconds, steps)

    def free(self, sequence: Sequence) -> None:
        draft = self._drafts.pop(sequence, None)
        if draft is not None:
            self.caches.invalidate(draft.copy)

    def _begin(self, sequence: Sequence, most_tokens: int) -> Draft | None:
        """The draft of a sequence, ready to be extended; None if it has none in this step."""
        fitting = min(most_tokens, self._context_tokens - len(sequence.token_ids) - 1)
        if sequence.images or fitting < 1:
            return None
        draft = self._drafts.get(sequence)
        if draft is None:
            copy = Sequence(list(sequence.token_ids), 0, 0, sequence.sampler)
            draft = Draft(sequence, copy, DraftLength(self.pace))
        draft.wanted = draft.length.next(fitting, sequences=self._num_decoding)
        if not draft.wanted:
            return None
        draft.follow(self.caches)
        return draft if self._has_room(draft) else None

    def _has_room(self, draft: Draft) -> bool:
        """Give a draft a cache, if there is memory for it and its wanted tokens."""
        others = [each.copy for owner, each in self._drafts.items() if owner is not draft.owner]
        if not self.caches.can_allocate([*others, draft.copy]):
            self.free(draft.owner)
            return False
        self._drafts[draft.owner] = draft
        if draft.copy.cache is None:
            self.caches.allocate(draft.copy)
        return self.caches.can_rewind(draft.copy, draft.wanted)

    def _extend(self, drafts: Iterable[Draft]) -> None:
        """Compute the tokens that are not computed yet, then draft the wanted ones."""
        left = self._chunk_tokens
        batch: list[tuple[Draft, int]] = []
        for draft in drafts:
            missing = min(len(draft.copy.token_ids) - draft.copy.num_computed_tokens, left)
            if missing:
                batch.append((draft, missing))
            left -= missing
        if batch:
            self._go_on(self._draft_after(batch))

    def _go_on(self, going_on: list[Draft]) -> None:
        """Draft the further tokens of drafts that have some."""
        for draft in going_on:
            self.caches.mark(draft.copy)
        while going_on := [draft for draft in going_on if not draft.is_complete]:
            if not self._step(going_on):
                self._draft_after([(draft, 1) for draft in going_on])

    def _draft_after(self, batch: abc.Sequence[tuple[Draft, int]]) -> list[Draft]:
        """Compute the next tokens of these drafts.

        Those whose tokens are then all computed get another one, and are returned.
        """
        rows = self._forward(batch)
        complete = [draft for draft, _ in batch if draft.copy.is_computed]
        for draft, logits in zip(complete, rows, strict=True):
            self.choose(draft, logits)
        return complete

    def _forward(self, batch: abc.Sequence[tuple[Draft, int]]) -> FloatArray:
        """Compute the next tokens of these drafts; the logits (W, V) of those then complete."""
        scheduled = [ScheduledSequence(draft.copy, num_tokens) for draft, num_tokens in batch]
        rows: FloatArray = self._compute(batch, scheduled, lambda: self._check(batch)).numpy()
        for copy, num_tokens in scheduled:
            copy.num_computed_tokens += num_tokens
        return rows

    def _step(self, drafts: abc.Sequence[Draft]) -> bool:
        """Compute and choose several tokens of each draft, with little between them.

        False, and nothing is computed, if the model has no such steps, or the next block of a cache
        is near.
        """
        copies = [draft.copy for draft in drafts]
        most = min(draft.wanted - draft.copy.num_new_tokens for draft in drafts)
        most = min(most, *map(self.caches.room, copies))
        scheduled = [ScheduledSequence(copy, 1) for copy in copies]
        steps = self._steps(drafts, scheduled, most) if most > 1 else None
        if steps is None:
            return False
        for number in range(most):
            if number:
                self._check([(draft, 1) for draft in drafts])
                steps.next(*[copy.token_ids[-1] for copy in copies])
            for draft, logits in zip(drafts, steps.logits(), strict=True):
                self.choose(draft, logits)
        for copy in copies:
            copy.num_computed_tokens += 1
            self.caches.append(copy, most - 1)
        return True

    def _check(self, batch: abc.Sequence[tuple[Draft, int]]) -> None:
        if all(draft.owner.is_aborted for draft, _ in batch):
            raise StepAborted

    def _steps(
        self, drafts: abc.Sequence[Draft], scheduled: ScheduledBatch, most_tokens: int
    ) -> NativeSteps | None:
        """Compute the next token of each draft, and be able to compute those after it."""
        return self._worker.steps(scheduled, most_tokens)

    def _compute(
        self,
        batch: abc.Sequence[tuple[Draft, int]],
        scheduled: ScheduledBatch,
        check: Callable[[], None],
    ) -> Tensor:
        """The logits (W, V) of the drafts that are complete with a batch."""
        return self._worker.forward(scheduled, check)

    def choose(self, draft: Draft, logits: FloatArray) -> None:
        """Add a token to a draft after logits (V,), which are overwritten."""
        draft.choose(self._fitting(logits), self._rng)

    def _fitting(self, logits: FloatArray) -> FloatArray:
        """Logits (V,) of the large model's vocabulary; either may be padded with unused tokens."""
        missing = self._vocab_size - len(logits)
        if missing <= 0:
            return logits[: self._vocab_size]
        return np.pad(logits, (0, missing), constant_values=-np.inf)

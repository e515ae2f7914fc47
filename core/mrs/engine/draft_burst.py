"""Drafts of a head and the steps that verify them, with little between them.

Between two calls of the native library, a general step does what any batch may need. For a small
model that takes longer than its products. A burst prepares three calls once: the model's rows with
drafts, the head's rows after them, and a token of each draft. Then it only changes their numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ReadOnlyList
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from mrs.engine.sampling.processors import FloatArray
from mrs.engine.sequence import ScheduledBatch, ScheduledSequence, Sequence
from mrs.model.native_layers import NativeSteps

if TYPE_CHECKING:
    from mrs.engine.cache_manager import CacheManager
    from mrs.engine.sampling.sampler import Proposal

#: Computes a batch of a head, which reads states (N, hidden), and can go on so.
HeadSteps = Callable[[ScheduledBatch, int, Tensor], NativeSteps | None]
#: Adds a token to the draft with an index, after logits (V,).
Choose = Callable[[int, FloatArray], None]


class ReadDraft(Protocol):
    """What a burst needs of a draft: see `mrs.engine.draft_head.HeadDraft`."""

    owner: Sequence
    copy: Sequence
    proposals: list[Proposal]
    num_read: int
    unread: Tensor

    def follow(self, caches: CacheManager) -> None:
        """Take over the tokens of the owner; the cache keeps what was read of the model."""


class DraftBurst:
    """Goes on with sequences whose drafts a step has verified.

    Each time their drafts have as many tokens as the first ones, and all is in the same blocks.
    """

    def __init__(
        self,
        heads: ReadOnlyList[ReadDraft],
        verified: NativeSteps,
        room_tokens: int,
        caches: CacheManager,
        steps: HeadSteps,
        choose: Choose,
    ) -> None:
        """`verified` has computed the last token of the owner of each of `heads`, and its draft.

        So many tokens of each sequence from that last one on are in the same block of its cache.
        `caches` are those of the head.
        """
        self._heads, self._verified, self._caches = heads, verified, caches
        self._steps, self._choose = steps, choose
        self._sequences = sequences = [draft.owner for draft in heads]
        for draft in heads:
            draft.follow(caches)
        #: The steps so far.
        self.num_steps = 1
        self._lengths = [len(sequence.draft) for sequence in sequences]
        ends, end = [], 0
        for length in self._lengths:
            ends.append(end)
            end += 1 + length
        #: The first row of each sequence.
        self._first_rows = ends
        #: The positions of the last call's first rows, and where the blocks of their keys end.
        self._places = [sequence.num_computed_tokens for sequence in sequences]
        self._ends = [place + room_tokens for place in self._places]
        self._reads: NativeSteps | None = None
        self._drafts: NativeSteps | None = None
        #: The same in the head.
        self._read_places: list[int] = []
        self._draft_places: list[int] = []
        self._head_ends = [draft.num_read + caches.room(draft.copy) for draft in heads]

    def logits(self) -> list[FloatArray]:
        """Those of each sequence, (1 + draft, vocab), which are overwritten."""
        rows = self._verified.logits()
        spans = zip(self._first_rows, self._lengths, strict=True)
        return [rows[first : first + 1 + length] for first, length in spans]

    @property
    def may_go_on(self) -> bool:
        """Whether all sequences go on, and as long drafts of them again are in the same blocks."""
        ends = zip(self._heads, self._lengths, self._ends, self._head_ends, strict=True)
        for draft, length, end, head_end in ends:
            sequence = draft.owner
            tokens = len(sequence.token_ids)
            if sequence.is_finished or sequence.is_aborted:
                return False
            if tokens + 1 + length > sequence.max_length or tokens + length > end:
                return False
            if draft.num_read + 2 * (1 + length) > head_end:
                return False
        return True

    @property
    def _new(self) -> list[int]:
        """How many tokens of each sequence were chosen since the last verification."""
        places = zip(self._sequences, self._places, strict=True)
        return [len(sequence.token_ids) - 1 - place for sequence, place in places]

    def draft(self) -> None:
        """Let the head read what the model has computed of the chosen tokens, and draft.

        The model's rows after them are read too, since the calls always have as many; what the
        head has of those is written again.
        """
        heads, new = self._heads, self._new
        places = [draft.num_read for draft in heads]
        tokens: list[int] = []
        for sequence, length, count in zip(self._sequences, self._lengths, new, strict=True):
            tokens += sequence.token_ids[-count:] + [0] * (1 + length - count)
        if self._reads is None:
            self._reads = self._begin(heads, tokens)
        else:
            shifts = [a - b for a, b in zip(places, self._read_places, strict=True)]
            self._reads.at(tokens, shifts, self._verified.states)
        self._read_places = places
        last = [first + count - 1 for first, count in zip(self._first_rows, new, strict=True)]
        rows = self._reads.logits()
        for index, (draft, count, row) in enumerate(zip(heads, new, last, strict=True)):
            draft.num_read += count
            draft.proposals = []
            self._choose(index, rows[row])
        if max(self._lengths) > 1:
            self._go_on(heads, self._reads.states[last])
        for sequence, draft, length in zip(self._sequences, heads, self._lengths, strict=True):
            sequence.draft = [proposal.token for proposal in draft.proposals[:length]]
            if any(proposal.probabilities is not None for proposal in draft.proposals):
                sequence.proposals = draft.proposals[:length]

    def _begin(self, heads: ReadOnlyList[ReadDraft], tokens: list[int]) -> NativeSteps:
        batch: ScheduledBatch = []
        for draft, first, length in zip(heads, self._first_rows, self._lengths, strict=True):
            count = 1 + length
            draft.copy.token_ids[draft.num_read :] = tokens[first : first + count]
            batch.append(ScheduledSequence(draft.copy, count))
        return self._prepared(batch, self._verified.states)

    def _go_on(self, heads: ReadOnlyList[ReadDraft], states: Tensor) -> None:
        """Draft further tokens from the head's own `states` (B, hidden)."""
        tokens = [draft.proposals[-1].token for draft in heads]
        places = [draft.num_read for draft in heads]
        if self._drafts is None:
            batch = []
            for draft, token in zip(heads, tokens, strict=True):
                draft.copy.token_ids[draft.num_read :] = [token]
                draft.copy.num_computed_tokens = draft.num_read
                self._caches.drop_rejected(draft.copy)
                batch.append(ScheduledSequence(draft.copy, 1))
            self._drafts = self._prepared(batch, states)
        else:
            shifts = [a - b for a, b in zip(places, self._draft_places, strict=True)]
            self._drafts.at(tokens, shifts, states)
        further = max(self._lengths) - 1
        for number in range(further):
            if number:
                self._drafts.next(*[draft.proposals[-1].token for draft in heads])
            for index, logits in enumerate(self._drafts.logits()):
                self._choose(index, logits)
        self._draft_places = [place + further - 1 for place in places]

    def _prepared(self, batch: ScheduledBatch, states: Tensor) -> NativeSteps:
        room = min(self._caches.room(copy) for copy, _ in batch)
        steps = self._steps(batch, room, states)
        assert steps is not None, "others have been computed before"
        return steps

    def verify(self) -> None:
        """Compute the last tokens and their drafts."""
        tokens: list[int] = []
        for sequence in self._sequences:
            tokens += [sequence.token_ids[-1], *sequence.draft]
        places = [sequence.num_computed_tokens for sequence in self._sequences]
        shifts = [a - b for a, b in zip(places, self._places, strict=True)]
        self._verified.at(tokens, shifts)
        self._places = places
        self.num_steps += 1

    def end(self) -> None:
        """Leave the head as a general step does: it has not read the states of the last tokens."""
        caches = self._caches
        rows = zip(self._heads, self._first_rows, self._new, strict=True)
        for draft, first, count in rows:
            if draft.owner.is_finished:
                continue
            copy = draft.copy
            assert copy.cache is not None
            copy.num_computed_tokens = min(copy.cache.length, draft.num_read)
            caches.drop_rejected(copy)
            caches.extend(copy, draft.num_read - copy.num_computed_tokens)
            copy.num_computed_tokens = draft.num_read
            draft.unread = self._verified.states[first : first + count].clone()

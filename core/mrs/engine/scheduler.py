"""Chooses which sequences the next step computes, and how many tokens of each."""

from __future__ import annotations

import itertools
import math
import time
from bisect import insort
from collections import Counter, abc
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from mrs.engine.image_input import chunk_end
from mrs.engine.own_time import OwnTime
from mrs.engine.sequence import QueueFull, ScheduledBatch, ScheduledSequence, Sequence
from mrs.engine.step_budget import Chunk, StepBudget, StepRoom
from mrs.graph.step_rows import MAX_DRAFT_ROWS
from mrs.process.turns import Client, Turns, crowding

if TYPE_CHECKING:
    from mrs.engine.drafter import Drafter

#: How many later sequences may start before one that waits. After that, none starts before it.
MAX_OVERTAKEN = 8
#: How many requests may wait, unless set otherwise.
MAX_WAITING = 1024
#: A client that had a sequence so recently is likely to come again.
RECENT_S = 10.0


class CacheAllocator(Protocol):
    """What the scheduler needs of a cache manager."""

    def can_allocate(self, sequences: abc.Iterable[Sequence]) -> bool:
        """Whether there is memory for all these sequences together."""

    def allocate(self, sequence: Sequence) -> None:
        """Give `sequence` a cache.

        Sets `num_computed_tokens` to how many of its tokens the cache has already.
        """

    def can_rewind(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether its cache can take up `num_tokens` more than the sequence has, and drop them."""

    def free(self, sequence: Sequence) -> None:
        """Take the cache away. If the sequence goes on later, its tokens are computed again."""

    def is_prefix_being_computed(self, sequence: Sequence, other: Sequence) -> bool:
        """Whether `other` is about to compute tokens that `sequence` could then share."""


class Scheduler:
    """Prompts are computed in turns of their clients, within a token budget for each step.

    A step computes one token of every sequence that is decoding and its draft, and spends what is
    left of `budget` on prompts in chunks: of a client, the oldest first. At most `max_seqs` run at
    once, and no more than there is memory for; when they outgrow it, the youngest of whoever has
    most is preempted, and so it is when a client that has none running finds no room. At most
    MAX_OVERTAKEN later sequences start before one that cannot start yet, so that none waits for
    ever. Clients whose sequences take too long sit out steps, as `own_time` says.
    """

    def __init__(
        self,
        caches: CacheAllocator,
        *,
        max_seqs: int,
        budget: StepBudget,
        max_waiting: int = MAX_WAITING,
        drafter: Drafter | None = None,
    ) -> None:
        self._caches = caches
        self.drafter = drafter
        # Half of each step is left for prompts, however many sequences are decoding.
        self._max_seqs = max(1, min(max_seqs, budget.step_tokens // 2))
        self.budget = budget
        self.max_waiting = max_waiting
        self._arrivals = itertools.count()
        self._turns = Turns()
        self.own_time = OwnTime()
        #: The clients that sit out the next step.
        self._resting = set[Client]()
        #: When each client had a sequence added or removed, for RECENT_S.
        self._seen_s: dict[Client, float] = {}
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_cached_tokens = 0
        self.num_queried_tokens = 0
        self.num_preempted = 0

    def add(self, sequence: Sequence) -> None:
        """Add a new sequence to those that wait. Raises QueueFull."""
        if len(self.waiting) >= self.max_waiting:
            raise QueueFull(self.max_waiting)
        sequence.arrival = next(self._arrivals)
        self._seen_s[sequence.client] = time.monotonic()
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a finished sequence."""
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        self._seen_s[sequence.client] = time.monotonic()
        self._free_draft(sequence)

    def _free_draft(self, sequence: Sequence) -> None:
        sequence.drop_draft()
        if self.drafter is not None:
            self.drafter.free(sequence)

    def schedule(self) -> ScheduledBatch:
        """The batch of the next step; empty if there is no sequence."""
        self._shrink()
        self._make_room()
        self._resting = self.own_time.resting({each.client for each in self.running})
        active = [each for each in self.running if each.client not in self._resting]
        decoding = [each for each in active if each.is_decoding]
        self._speculate(decoding)
        batch = [ScheduledSequence(each, 1 + len(each.draft)) for each in decoding]
        prompts: ScheduledBatch = []
        num_decoding = sum(num_tokens for _, num_tokens in batch)
        is_awaited = bool(decoding) or self._has_several_clients()
        self._add_prompts(StepRoom(self.budget, num_decoding, is_awaited=is_awaited), prompts)
        return batch + prompts

    def undisturbed_s(self, batch: ScheduledBatch) -> float:
        """How long steps may have the sequences of a batch only, whatever others there are.

        For ever if there are none; if all others sit out, until the first of them has paid.
        """
        if len(self.running) == len(batch) and not self.waiting:
            return math.inf
        if not self._resting:
            return 0.0
        clients = Counter(each.client for each in itertools.chain(self.running, self.waiting))
        clients.subtract(sequence.client for sequence, _ in batch)
        others = {client for client, count in clients.items() if count}
        return self.own_time.shortest_rest_s() if others <= self._resting else 0.0

    def may_draft(self, sequence: Sequence) -> bool:
        """Whether the next step may have a draft of a sequence that decodes."""
        return self.drafter is not None and self.drafter.may_draft(sequence)

    def _has_several_clients(self) -> bool:
        """Whether more than one has a sequence now, or had one recently."""
        oldest_s = time.monotonic() - RECENT_S
        self._seen_s = {each: at_s for each, at_s in self._seen_s.items() if at_s > oldest_s}
        present = {each.client for each in itertools.chain(self.running, self.waiting)}
        return len(present | self._seen_s.keys()) > 1

    def _speculate(self, decoding: abc.Sequence[Sequence]) -> None:
        """Draft tokens of the sequences that are decoding, if there are few enough of them."""
        if not decoding or self.drafter is None:
            return
        most_tokens = min(MAX_DRAFT_ROWS, self.budget.step_tokens // 2) // len(decoding) - 1
        # The last token of a sequence is never drafted: it is chosen after the draft.
        wanted = {
            each: most
            for each in decoding
            if (most := min(most_tokens, each.max_length - len(each.token_ids) - 1)) > 0
            and each.num_new_tokens
            and self._caches.can_rewind(each, 1)
        }
        self.drafter.draft(wanted)
        drafted = [each for each in wanted if each.draft]
        for sequence in drafted:
            sequence.forget_forbidden_draft()
            if not self._caches.can_rewind(sequence, len(sequence.draft)):
                sequence.drop_draft()
        if drafted and not self._caches.can_allocate(self.running):
            for sequence in drafted:
                sequence.drop_draft()

    def _add_prompts(self, room: StepRoom, prompts: ScheduledBatch) -> None:
        """Go on with the prompts that run, and start those that wait, as far as there is room."""
        begun = [each for each in self.running if not each.is_decoding]
        passed: list[Sequence] = []
        if not begun and len(self.running) >= self._max_seqs:
            return
        newcomers = {each.client for each in self.waiting} - {each.client for each in self.running}
        for sequence in self._turns.in_order([*begun, *self.waiting]):
            if room.is_full:
                return
            if sequence.client in self._resting:
                continue
            if sequence not in begun and not self._starts(sequence, passed, newcomers):
                continue
            if self._add_chunk(sequence, room, prompts):
                self._turns.take(sequence.client)

    def _starts(self, sequence: Sequence, passed: list[Sequence], newcomers: set[Client]) -> bool:
        """Let a sequence that waits run if it may; `passed` are those before it that may not.

        The last place is for `newcomers`: clients that have none running.
        """
        takes_last = not newcomers or sequence.client in newcomers
        if len(self.running) + (not takes_last) >= self._max_seqs:
            return False
        if any(each.num_overtaken >= MAX_OVERTAKEN for each in passed):
            return False
        if not self._may_start(sequence):
            passed.append(sequence)
            return False
        self._start(sequence)
        newcomers.discard(sequence.client)
        for each in passed:
            each.num_overtaken += 1
        return True

    def _start(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=attrgetter("arrival"))
        sequence.started_s = sequence.started_s or time.perf_counter()

    def _may_start(self, sequence: Sequence) -> bool:
        if not self.running:
            return True
        return self._caches.can_allocate([*self.running, sequence]) and not self._awaits_prefix(
            sequence
        )

    def _awaits_prefix(self, sequence: Sequence) -> bool:
        return any(
            self._caches.is_prefix_being_computed(sequence, other)
            for other in self.running
            if other.num_computed_tokens < other.num_prompt_tokens
        )

    def _add_chunk(self, sequence: Sequence, room: StepRoom, prompts: ScheduledBatch) -> bool:
        """Schedule tokens that are not computed yet, if there is room; returns whether it did.

        There may be more than there is room for if an image, or the whole sequence, cannot be
        divided.
        """
        if sequence.cache is None:
            self._caches.allocate(sequence)
            self.num_cached_tokens += sequence.num_computed_tokens
            self.num_queried_tokens += len(sequence.token_ids)
        start = sequence.num_computed_tokens
        end = sequence.next_snapshot or len(sequence.token_ids)
        is_scored = sequence.prompt_scores is not None
        left = room.tokens(start, is_scored=is_scored)
        if not sequence.is_undivided:
            end = chunk_end(sequence.images, min(end, start + left), start=start)
        num_tokens = end - start
        if num_tokens > left and prompts:
            return False  # it has a step of its own
        prompts.append(ScheduledSequence(sequence, num_tokens))
        room.take(Chunk(num_tokens, start, is_scored))
        return True

    def _shrink(self) -> None:
        """Preempt sequences while all that run need too much memory.

        The first is the youngest of whoever has most, and never the oldest of all.
        """
        while len(self.running) > 1 and not self._caches.can_allocate(self.running):
            youngest = self.running[-1]
            self._preempt(crowding(self.running, youngest.client, added=0) or youngest)

    def _make_room(self) -> None:
        """Start the oldest sequence of a client that has none running, one of each API key.

        Whoever has most running leaves it room: otherwise it would wait for the end of a reply.
        """
        if not self.running:
            return
        clients, keys = {each.client for each in self.running}, set[Client]()
        for sequence in list(self.waiting):
            client = sequence.client
            if client in clients or client[:-1] in keys or self._awaits_prefix(sequence):
                continue
            keys.add(client[:-1])
            if leaving := self._leaving_for(sequence):
                for each in leaving:
                    self._preempt(each)
                self._start(sequence)

    def _leaving_for(self, sequence: Sequence) -> list[Sequence]:
        """Those of whoever has most running that leave their room to `sequence`.

        None if it has room already, or cannot get enough.
        """
        staying, leaving = list(self.running), list[Sequence]()
        while len(staying) >= self._max_seqs or not self._caches.can_allocate([*staying, sequence]):
            if (one := crowding(staying, sequence.client)) is None:
                return []
            staying.remove(one)
            leaving.append(one)
        return leaving

    def _preempt(self, sequence: Sequence) -> None:
        """Take the cache of a running sequence away and let it wait again."""
        self.running.remove(sequence)
        self._caches.free(sequence)
        self._free_draft(sequence)
        sequence.num_preemptions += 1
        self.num_preempted += 1
        insort(self.waiting, sequence, key=attrgetter("arrival"))

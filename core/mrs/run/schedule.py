"""Who is fed next, and how many tokens."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from mrs.run.generation import Generation
from mrs.run.memory import CachePool
from mrs.run.shown import chunk_end


class Ration(NamedTuple):
    """Tokens that a sequence is fed in a step."""

    generation: Generation
    tokens: int


class Schedule:
    """Sequences in the order in which they came: those that run, and those that wait.

    A step feeds one token to every sequence that is decoding, and what is left of `step_tokens`
    to prompts, the oldest first. At most `max_seqs` run at once, and no more than their planned
    memory allows; the youngest is put back when they outgrow it.
    """

    def __init__(self, pool: CachePool, *, max_seqs: int, step_tokens: int) -> None:
        self._pool = pool
        self._max_seqs = max_seqs
        self._step_tokens = step_tokens
        self.waiting: deque[Generation] = deque()
        self.running: list[Generation] = []

    def next_step(self) -> list[Ration]:
        """What to feed now; nothing if there is nothing to do."""
        self._put_back()
        decoding = [Ration(each, 1) for each in self.running if each.is_decoding]
        left = self._step_tokens - len(decoding)
        prompts: list[Ration] = []
        for generation in [g for g in self.running if not g.is_decoding]:
            left -= self._read(generation, left, prompts)
        while left > 0 and self.waiting and self._may_start(self.waiting[0]):
            generation = self.waiting.popleft()
            self.running.append(generation)
            left -= self._read(generation, left, prompts)
        return decoding + prompts

    def remove(self, generation: Generation) -> None:
        if generation in self.running:
            self.running.remove(generation)
        elif generation in self.waiting:
            self.waiting.remove(generation)

    def _read(self, generation: Generation, left: int, prompts: list[Ration]) -> int:
        """Feed up to `left` tokens of what is not in the cache yet; returns how many.

        They are more where a picture takes more that cannot be divided.
        """
        if left <= 0:
            return 0
        if generation.cache is None:
            self._pool.open(generation)
        fed, end = generation.fed, len(generation.ids)
        if fed < generation.checkpoint:
            end = generation.checkpoint
        tokens = chunk_end(generation.images, min(end, fed + left), start=fed) - fed
        if tokens > left and prompts:
            return 0  # what cannot be divided has a step of its own
        prompts.append(Ration(generation, tokens))
        return tokens

    def _may_start(self, generation: Generation) -> bool:
        if not self.running:
            return True
        if len(self.running) >= self._max_seqs:
            return False
        if self._ids() + self._pool.whole_blocks(len(generation.ids)) > self._pool.planned_ids:
            return False
        return not any(
            self._pool.is_awaited(generation, other)
            for other in self.running
            if other.fed < other.prompt_tokens
        )

    def _put_back(self) -> None:
        """Make the youngest wait while the running sequences have more tokens than planned."""
        while len(self.running) > 1 and self._ids() > self._pool.planned_ids:
            generation = self.running.pop()
            self._pool.close(generation)
            self.waiting.appendleft(generation)

    def _ids(self) -> int:
        return sum(self._pool.whole_blocks(len(each.ids)) for each in self.running)

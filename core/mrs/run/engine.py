"""Make tokens with a decoder: all running sequences in one batch, step by step."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from random import Random

import torch

from mrs.cache.prefix_folder import PrefixFolder
from mrs.errors import ContextFull, UsageError
from mrs.families.vision.spec import Vision
from mrs.model.batch import forward_batch
from mrs.model.decoder import Decoder
from mrs.request import PREFILL_CHUNK_TOKENS, Sampling
from mrs.run.draw import Numbers
from mrs.run.generation import Generation, Take
from mrs.run.memory import CachePool
from mrs.run.sampler import Choice, Sampler
from mrs.run.schedule import Ration, Schedule
from mrs.run.shown import ShownImage, sequence_input


class Engine:
    """Runs up to `max_seqs` sequences at once; speaks token ids only.

    There is no thread of its own: whoever waits for a token computes a step for all, and threads
    take turns. A caller may stop waiting at any moment, by a KeyboardInterrupt too: the sequences
    go on in the next step from where they were.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        planned_tokens: int,
        context_tokens: int,
        kv_cache: bool = True,
        seed: int | None = None,
        chunk_tokens: int = PREFILL_CHUNK_TOKENS,
        max_seqs: int = 1,
        planned_seqs: int = 1,
        prefix_cache_n: int = 0,
        prefix_budget_bytes: Mapping[torch.device, int] | None = None,
        prefix_folder: PrefixFolder | None = None,
    ) -> None:
        self._decoder = decoder
        self.context_tokens = context_tokens
        self._kv_cache = kv_cache
        self._seed = seed
        self._pool = CachePool(
            decoder,
            planned_tokens=min(planned_tokens, context_tokens),
            planned_seqs=planned_seqs,
            chunk_tokens=chunk_tokens,
            prefix_cache_n=prefix_cache_n if kv_cache else 0,
            prefix_budget_bytes=prefix_budget_bytes or {},
            prefix_folder=prefix_folder,
        )
        self._schedule = Schedule(self._pool, max_seqs=max_seqs, step_tokens=chunk_tokens)
        self._submitted: deque[Generation] = deque()
        self._in_flight: list[Generation] = []
        self._changed = threading.Condition()
        self._stepper: int | None = None

    def submit(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        take: Take,
        breakers: frozenset[int] = frozenset(),
        images: Sequence[ShownImage] = (),
    ) -> Generation:
        """Begin a reply: `take` gets its tokens, in whichever thread computes them.

        `images` are shown at their places in the prompt. `breakers` are the tokens that end a repetition. The reply goes on while somebody calls
        `advance`, until `take` says so, or the model's context or `sampling.max_tokens` is
        reached. Raises UsageError.
        """
        if not prompt_ids:
            raise UsageError("the prompt has no tokens", hint="give it a text")
        if len(prompt_ids) >= self.context_tokens:
            raise ContextFull(len(prompt_ids), self.context_tokens)
        most_ids = self.context_tokens
        if sampling.max_tokens is not None:
            most_ids = min(most_ids, len(prompt_ids) + sampling.max_tokens)
        sampler = Sampler(
            sampling,
            list(prompt_ids),
            self._decoder.spec.vocab_size,
            self._new_chances(sampling),
            breakers,
        )
        generation = Generation(
            list(prompt_ids), most_ids, sampler, take, len(prompt_ids), tuple(images)
        )
        self._submitted.append(generation)
        return generation

    def advance(self, generation: Generation) -> None:
        """Compute until there is another token of this reply, or it is over; raises its error."""
        before, me = generation.new_tokens, threading.get_ident()

        def has_news() -> bool:
            return generation.new_tokens > before or generation.is_over

        try:
            with self._changed:
                self._changed.wait_for(lambda: has_news() or self._stepper is None)
                if not has_news():
                    self._stepper = me
            while not has_news():
                self._step()
                with self._changed:
                    self._changed.notify_all()
        finally:
            if self._stepper == me:
                with self._changed:
                    self._stepper = None
                    self._changed.notify_all()
        if generation.error is not None:
            raise generation.error

    def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, images: Sequence[ShownImage] = ()
    ) -> Iterator[int]:
        """Yield the tokens of one reply; the consumer stops when it has seen enough."""
        tokens: deque[int] = deque()

        def take(choice: Choice) -> bool:
            tokens.append(choice.token)
            return False

        generation = self.submit(prompt_ids, sampling, take, images=images)
        try:
            while tokens or not generation.is_over:
                if not tokens:
                    self.advance(generation)
                while tokens:
                    yield tokens.popleft()
        finally:
            generation.cancel()

    @property
    def vision(self) -> Vision | None:
        """How the model sees, if it does."""
        return self._decoder.spec.vision

    def close(self) -> None:
        """Wait for what past sequences still have to be written to files."""
        self._pool.prefixes.close()

    @property
    def prefix_bytes(self) -> int:
        """Bytes that past sequences are remembered in."""
        return self._pool.prefixes.nbytes

    @torch.inference_mode()
    def _step(self) -> None:
        """Feed a batch, and choose a token for each sequence that has been fed completely."""
        self._tidy()
        batch = self._schedule.next_step()
        if not batch:
            return
        self._in_flight = [ration.generation for ration in batch]
        for generation in self._in_flight:
            generation.is_shared |= len(batch) > 1
        logits = self._logits(batch)
        for generation, tokens in batch:
            generation.fed += tokens
        complete = [each for each, _ in batch if each.fed == len(each.ids)]
        self._in_flight = list(complete)
        self._remember(batch)
        for generation, row in zip(complete, logits, strict=True):
            self._choose(generation, row)
            self._in_flight.remove(generation)

    def _tidy(self) -> None:
        """Take up what happened since the last step."""
        while self._in_flight:
            self._pool.recover(self._in_flight[-1])
            self._in_flight.pop()
        while self._submitted:
            self._schedule.waiting.append(self._submitted[0])
            self._submitted.popleft()
        for generation in [*self._schedule.running, *self._schedule.waiting]:
            if generation.is_cancelled and not generation.is_over:
                generation.reason = "cancelled"
            if generation.is_over:
                self._end(generation)

    def _logits(self, batch: list[Ration]) -> Numbers:
        """Feed every ration; logits (W, V) after those that complete their sequence."""
        inputs, caches = [], []
        for generation, tokens in batch:
            cache, fed = generation.cache, generation.fed
            assert cache is not None
            caches.append(cache)
            inputs.append(
                sequence_input(
                    self._decoder,
                    cache,
                    generation.images,
                    generation.ids[: fed + tokens],
                    len(generation.ids),
                    is_last=fed + tokens == len(generation.ids),
                )
            )
        logits = self._decoder.forward(forward_batch(inputs), caches)
        numbers: Numbers = logits.cpu().numpy()
        return numbers

    def _remember(self, batch: list[Ration]) -> None:
        for generation, _ in batch:
            if generation.fed in (generation.checkpoint, generation.prompt_tokens):
                self._pool.remember(generation)

    def _choose(self, generation: Generation, logits: Numbers) -> None:
        """Add a token to one sequence. An error there ends that sequence alone."""
        try:
            choice = generation.sampler(logits)
            generation.ids.append(choice.token)
            if generation.take(choice):
                generation.reason = "stop"
            elif len(generation.ids) >= generation.most_ids:
                generation.reason = "length"
        except Exception as error:  # noqa: BLE001 - raised where the reply is waited for
            generation.error, generation.reason = error, "cancelled"
        if generation.is_over:
            self._end(generation)
        elif generation.cache is not None and (
            not self._kv_cache or self._decoder.is_outdated(generation.cache, len(generation.ids))
        ):
            self._pool.renew(generation)

    def _end(self, generation: Generation) -> None:
        self._schedule.remove(generation)
        self._pool.close(generation)

    def _new_chances(self, sampling: Sampling) -> Random:
        """Chances of its own for every reply, so that none depends on another."""
        seed = self._seed if sampling.seed is None else sampling.seed
        return Random() if seed is None else Random((seed + sampling.variant) % 2**64)

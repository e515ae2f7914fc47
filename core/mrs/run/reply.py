"""A reply as events: text as it becomes certain, and at last how it went."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence

from mrs.events import Event, Finished, PlannedRates, TextDelta, TokenLogprob, Usage
from mrs.plan.learnt import Pace
from mrs.plan.speed import SpeedEstimate
from mrs.request import Sampling
from mrs.run.engine import Engine
from mrs.run.generation import Generation
from mrs.run.sampler import Choice
from mrs.run.shown import ShownImage
from mrs.text.chat import TextSide

#: Tokens in a row whose mean time is a step's: short, to find moments that nothing disturbs.
TIMED_STEPS = 8


class Reply:
    """The events of one reply: an iterator that ends with one `Finished`.

    It is made together with all others that were begun, whenever somebody waits for one of them.
    A KeyboardInterrupt while it is waited for ends it as cancelled; `close` stops it at once.
    `opening` is text of the reply that the prompt has already said; `speed` is what was planned,
    and `pace` is told how fast it went.
    """

    def __init__(
        self,
        engine: Engine,
        text: TextSide,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        opening: str = "",
        images: Sequence[ShownImage] = (),
        speed: SpeedEstimate | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._engine = engine
        self._progress = _Progress(text, sampling, speed, pace or Pace())
        if opening:
            self._progress.events.append(TextDelta(opening))
        breakers = frozenset[int]()
        if sampling.dry_multiplier:
            breakers = frozenset(map(text.last_token, sampling.dry_sequence_breakers))
        self._generation = engine.submit(
            prompt_ids, sampling, self._progress.take, breakers, images
        )
        self._is_finished = False

    def __iter__(self) -> Reply:
        return self

    def __next__(self) -> Event:
        """The next event, computed if it has to be. Raises MrsError."""
        if self._is_finished:
            raise StopIteration
        generation, events = self._generation, self._progress.events
        try:
            while not (events or generation.is_over or generation.is_cancelled):
                self._engine.advance(generation)
        except KeyboardInterrupt:
            generation.cancel()
        except BaseException:
            self.close()
            raise
        if not events:
            self._progress.finish(generation)
        event = events.popleft()
        self._is_finished = isinstance(event, Finished)
        return event

    def close(self) -> None:
        """Stop the reply, wherever it is."""
        self._generation.cancel()
        self._is_finished = True

    def __del__(self) -> None:
        # The engine does not know this object: nobody waits for the reply any more.
        if hasattr(self, "_generation"):
            self._generation.cancel()


class _Progress:
    """Turns tokens into events, and counts and times them."""

    def __init__(
        self, text: TextSide, sampling: Sampling, speed: SpeedEstimate | None, pace: Pace
    ) -> None:
        self.events: deque[Event] = deque()
        self._tokenizer = text.tokenizer
        self._stop_ids = frozenset[int]() if sampling.ignore_eos else text.stop_ids
        self._decoder = text.stream_decoder(sampling.stop)
        self._speed = speed
        self._pace, self._step_s = pace, math.inf
        self._tokens = 0
        self._start = self._first = self._last = self._mark = time.perf_counter()

    def take(self, choice: Choice) -> bool:
        """The next token; returns whether the reply ends with it."""
        self._last = time.perf_counter()
        if self._tokens == 0:
            self._first = self._mark = self._last
        elif self._tokens % TIMED_STEPS == 0:
            self._step_s = min(self._step_s, (self._last - self._mark) / TIMED_STEPS)
            self._mark = self._last
        self._tokens += 1
        if choice.token in self._stop_ids:
            return True
        text = self._decoder.push(choice.token)
        logprobs = () if choice.logprob is None else (self._logprob(choice, choice.logprob),)
        if text or logprobs:
            self.events.append(TextDelta(text, logprobs))
        return self._decoder.stopped

    def finish(self, generation: Generation) -> None:
        """Add the text that was kept back, and the end."""
        if rest := self._decoder.finish():
            self.events.append(TextDelta(rest))
        usage = Usage(
            prompt_tokens=generation.prompt_tokens,
            completion_tokens=self._tokens,
            cached_tokens=generation.cached_tokens,
            prompt_s=self._first - self._start,
            completion_s=self._last - self._first,
            planned=self._planned(generation),
        )
        self.events.append(Finished(generation.reason or "cancelled", usage))

    def _planned(self, generation: Generation) -> PlannedRates | None:
        """None where something took time that the plan's rates do not cover."""
        if self._speed is None or generation.is_shared or generation.images:
            return None
        fed = max(generation.prompt_tokens - generation.cached_tokens, 1)
        if self._step_s < math.inf:
            self._pace.add_step(self._step_s)
        if not generation.cached_tokens and self._tokens:
            self._pace.add_prompt(fed, self._first - self._start)
        return PlannedRates(self._speed.prompt_of(fed), self._speed.decode)

    def _logprob(self, choice: Choice, logprob: float) -> TokenLogprob:
        piece = self._tokenizer.piece
        top = tuple((piece(token), value) for token, value in choice.top)
        return TokenLogprob(piece(choice.token), logprob, top)

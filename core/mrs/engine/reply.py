"""A reply as events: its text, as far as it is certain, and at last its usage."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from mrs.engine.image_input import ImageInput
from mrs.engine.loop import EngineLoop
from mrs.engine.sampling.processors import Constraint
from mrs.engine.sampling.sampler import SampledToken
from mrs.engine.sequence import SequenceRequest, TokenOutput
from mrs.events import (
    Event,
    Finished,
    FinishReason,
    PlannedRates,
    ReplyUsage,
    TextDelta,
    TokenLogprob,
)
from mrs.plan.speed.learnt import LEAST_PROMPT_TOKENS, Pace
from mrs.plan.speed.roofline import SpeedEstimate
from mrs.request import Sampling
from mrs.text.text_processor import TextProcessor

#: Tokens in a row whose mean time is a step's: short, to find moments that nothing disturbs.
TIMED_STEPS = 8


class ReplyCalls(Protocol):
    """Splits the text of a reply into content and calls of tools.

    The control tokens `shown` have to be in the text.
    """

    shown: frozenset[str]
    num_calls: int

    def push(self, text: str) -> Sequence[Event]:
        """What is certain with the next text."""

    def finish(self) -> Sequence[Event]:
        """What was held back."""


class Reply:
    """The events of one reply: an iterator that ends with one `Finished`.

    Tokens are computed even if nobody reads them; they become text in the thread that reads. A
    KeyboardInterrupt while it waits ends it as cancelled; `close` stops it at once. `opening` is
    text of the reply that the prompt already has. `speed` is the planned speed, and `pace` collects
    the measured one. A `constraint` says which texts the reply may have; `calls` finds calls of
    tools in them.
    """

    def __init__(
        self,
        engine: EngineLoop,
        text: TextProcessor,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        opening: str = "",
        images: Sequence[ImageInput] = (),
        speed: SpeedEstimate | None = None,
        pace: Pace | None = None,
        timeout_s: float | None = None,
        constraint: Constraint | None = None,
        calls: ReplyCalls | None = None,
    ) -> None:
        breakers = frozenset[int]()
        if sampling.dry_multiplier:
            breakers = frozenset(map(text.last_token, sampling.dry_sequence_breakers))
        self._events = deque[Event]([TextDelta(opening)] if opening else [])
        self._tokenizer = text.tokenizer
        shown = calls.shown if calls else frozenset[str]()
        is_exact = constraint is not None
        self._decoder = text.stream_decoder(sampling.stop, is_exact=is_exact, shown=shown)
        self._calls = calls
        self._is_constrained = constraint is not None
        self._speed = speed
        self._num_tokens = 0
        self._is_finished = False
        self._pace, self._step_s = pace or Pace(), math.inf
        self._start_s = self._first_s = self._last_s = self._mark_s = time.perf_counter()
        self._stop_ids = frozenset[int]() if sampling.ignore_eos else text.stop_ids
        self._stream = engine.submit(
            SequenceRequest(
                prompt_ids, sampling, self._stop_ids, breakers, images, timeout_s, constraint
            )
        )

    def __iter__(self) -> Reply:
        return self

    def __next__(self) -> Event:
        """Waits for the next event. Raises MrsError."""
        if self._is_finished:
            raise StopIteration
        try:
            while not self._events:
                self._take(next(self._stream))
        except KeyboardInterrupt:
            self._finish("cancelled")
        except BaseException:
            self.close()
            raise
        event = self._events.popleft()
        self._is_finished = isinstance(event, Finished)
        return event

    def close(self) -> None:
        """Stop the reply. Any thread may call this."""
        self._stream.close()
        self._is_finished = True

    def __del__(self) -> None:
        # The engine has no reference to this object: nobody reads the reply any more.
        if hasattr(self, "_stream"):
            self._stream.close()

    def _take(self, output: TokenOutput) -> None:
        """Turn a token, or the end, into events."""
        reason = output.finish_reason
        if output.token is not None:
            self._count(output.time_s)
            if output.token.id not in self._stop_ids:
                self._add_text(output.token)
            if self._decoder.stopped:
                reason = "stop"
        if reason is not None:
            self._finish(reason)

    def _count(self, time_s: float) -> None:
        self._last_s = time_s
        if self._num_tokens == 0:
            self._first_s = self._mark_s = time_s
        elif self._num_tokens % TIMED_STEPS == 0:
            self._step_s = min(self._step_s, (time_s - self._mark_s) / TIMED_STEPS)
            self._mark_s = time_s
        self._num_tokens += 1

    def _add_text(self, token: SampledToken) -> None:
        text = self._decoder.push(token.id)
        logprobs = () if token.logprob is None else (self._logprob(token, token.logprob),)
        if self._calls is None:
            self._events.extend([TextDelta(text, logprobs)] if text or logprobs else ())
            return
        self._events.extend([TextDelta("", logprobs)] if logprobs else ())
        self._events.extend(self._calls.push(text))

    def _finish(self, reason: FinishReason) -> None:
        """Add the rest of the text, and the end."""
        self._stream.close()
        rest = self._decoder.finish()
        if self._calls is not None:
            self._events.extend([*self._calls.push(rest), *self._calls.finish()])
            if self._calls.num_calls and reason == "stop":
                reason = "tool_calls"
        elif rest:
            self._events.append(TextDelta(rest))
        sequence = self._stream.sequence
        usage = ReplyUsage(
            prompt_tokens=sequence.num_prompt_tokens,
            completion_tokens=self._num_tokens,
            cached_tokens=sequence.num_cached_tokens,
            prompt_s=self._first_s - self._start_s,
            completion_s=self._last_s - self._first_s,
            planned=self._planned_rates(),
            drafted_tokens=sequence.num_drafted_tokens,
            accepted_tokens=sequence.num_accepted_tokens,
        )
        self._events.append(Finished(reason, usage))

    def _planned_rates(self) -> PlannedRates | None:
        """None if the reply took time for something that the plan's rates leave out."""
        sequence = self._stream.sequence
        if self._speed is None or sequence.is_batched or sequence.images or self._is_constrained:
            return None
        computed = max(sequence.num_prompt_tokens - sequence.num_cached_tokens, 1)
        if not sequence.num_cached_tokens and self._num_tokens:
            self._pace.add_prompt(computed, self._first_s - self._start_s)
        if sequence.num_drafted_tokens:  # its steps have other numbers of tokens
            return None
        if self._step_s < math.inf:
            self._pace.add_step(self._step_s)
        is_long = computed >= LEAST_PROMPT_TOKENS
        prompt = self._speed.prompt_of(computed) if is_long else None
        return PlannedRates(prompt, self._speed.decode)

    def _logprob(self, token: SampledToken, logprob: float) -> TokenLogprob:
        piece = self._tokenizer.piece
        top = tuple((piece(id), value) for id, value in token.top)
        return TokenLogprob(piece(token.id), logprob, top)

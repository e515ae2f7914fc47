"""Turns the tokens of a sequence into events: text as far as it is certain, and its usage."""

from __future__ import annotations

import math
import time
from collections import deque

from mrs.engine.prompt import Prompt
from mrs.engine.sampling.sampler import SampledToken
from mrs.engine.sequence import Sequence, SequenceRequest, TokenOutput
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


def sequence_request(
    text: TextProcessor,
    prompt: Prompt,
    sampling: Sampling,
    timeout_s: float | None = None,
    prefix_salt: int = 0,
) -> SequenceRequest:
    """The request to the engine for a reply to `prompt`."""
    breakers = frozenset[int]()
    if sampling.dry_multiplier:
        breakers = frozenset(map(text.last_token, sampling.dry_sequence_breakers))
    stop_ids = frozenset[int]() if sampling.ignore_eos else text.stop_ids
    return SequenceRequest(
        prompt.ids, sampling, stop_ids, breakers, prompt.images, timeout_s, prefix_salt
    )


class ReplyEvents:
    """The events of one reply, a queue that ends with one `Finished`.

    `take` adds those of an output of the engine. `opening` is text of the reply that the prompt
    already has. `speed` is the planned speed, and `pace` collects the measured one.
    """

    def __init__(
        self,
        sequence: Sequence,
        text: TextProcessor,
        sampling: Sampling,
        opening: str = "",
        speed: SpeedEstimate | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.sequence = sequence
        self.queue = deque[Event]([TextDelta(opening)] if opening else [])
        self._tokenizer = text.tokenizer
        self._decoder = text.stream_decoder(sampling.stop)
        self._speed = speed
        self.num_tokens = 0
        self._pace, self._step_s = pace or Pace(), math.inf
        self.start_s = self._first_s = self._last_s = self._mark_s = time.perf_counter()

    def take(self, output: TokenOutput) -> None:
        """Add the events of a token, or of the end."""
        reason = output.finish_reason
        if output.token is not None:
            self._count(output.time_s)
            if reason != "stop":
                self._add_text(output.token)
            if self._decoder.stopped:
                reason = "stop"
        if reason is not None:
            self.finish(reason)

    def finish(self, reason: FinishReason) -> None:
        """End the sequence; add the rest of the text, and the end."""
        self.sequence.abort()
        if rest := self._decoder.finish():
            self.queue.append(TextDelta(rest))
        sequence = self.sequence
        usage = ReplyUsage(
            prompt_tokens=sequence.num_prompt_tokens,
            completion_tokens=self.num_tokens,
            cached_tokens=sequence.num_cached_tokens,
            prompt_s=self._first_s - self.start_s,
            completion_s=self._last_s - self._first_s,
            planned=self._planned_rates(),
        )
        self.queue.append(Finished(reason, usage))

    def _count(self, time_s: float) -> None:
        self._last_s = time_s
        if self.num_tokens == 0:
            self._first_s = self._mark_s = time_s
        elif self.num_tokens % TIMED_STEPS == 0:
            self._step_s = min(self._step_s, (time_s - self._mark_s) / TIMED_STEPS)
            self._mark_s = time_s
        self.num_tokens += 1

    def _add_text(self, token: SampledToken) -> None:
        text = self._decoder.push(token.id)
        logprobs = () if token.logprob is None else (self._logprob(token, token.logprob),)
        if text or logprobs:
            self.queue.append(TextDelta(text, logprobs))

    def _planned_rates(self) -> PlannedRates | None:
        """None if the reply took time for something that the plan's rates leave out."""
        sequence = self.sequence
        if self._speed is None or sequence.is_batched or sequence.images:
            return None
        computed = max(sequence.num_prompt_tokens - sequence.num_cached_tokens, 1)
        if self._step_s < math.inf:
            self._pace.add_step(self._step_s)
        if not sequence.num_cached_tokens and self.num_tokens:
            self._pace.add_prompt(computed, self._first_s - self.start_s)
        is_long = computed >= LEAST_PROMPT_TOKENS
        prompt = self._speed.prompt_of(computed) if is_long else None
        return PlannedRates(prompt, self._speed.decode)

    def _logprob(self, token: SampledToken, logprob: float) -> TokenLogprob:
        piece = self._tokenizer.piece
        top = tuple((piece(id), value) for id, value in token.top)
        return TokenLogprob(piece(token.id), logprob, top)

"""Turns the tokens of a sequence into events: text as far as it is certain, and its usage."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection
from itertools import takewhile

from mrs.engine.prompt import Prompt
from mrs.engine.prompt_scores import ScoredToken
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
    ToolCallDelta,
)
from mrs.plan.speed.draft_record import DraftRecord
from mrs.plan.speed.learnt import LEAST_PROMPT_TOKENS, Pace
from mrs.plan.speed.roofline import SpeedEstimate
from mrs.process.turns import Client
from mrs.request import Sampling
from mrs.text.prompt_offsets import prompt_offsets
from mrs.text.stop_strings import StopStrings
from mrs.text.text_processor import TextProcessor

#: Tokens in a row whose mean time is a step's: short, to find moments that nothing disturbs.
TIMED_STEPS = 8


def sequence_request(
    text: TextProcessor,
    prompt: Prompt,
    sampling: Sampling,
    timeout_s: float | None = None,
    prefix_salt: int = 0,
    client: Client = (),
) -> SequenceRequest:
    """The request to the engine for a reply to `prompt`."""
    breakers = frozenset[int]()
    if sampling.dry_multiplier:
        breakers = frozenset(map(text.last_token, sampling.dry_sequence_breakers))
    stop_ids = frozenset(sampling.stop_token_ids)
    if not sampling.ignore_eos:
        stop_ids |= text.stop_ids
    return SequenceRequest(
        prompt.ids,
        sampling,
        stop_ids,
        breakers,
        prompt.images,
        timeout_s,
        prefix_salt,
        client=client,
        constraint=prompt.new_constraint() if prompt.new_constraint else None,
        control_ids=text.tokenizer.control_id_set,
    )


class ReplyEvents:
    """The events of one reply, a queue that ends with one `Finished`.

    `take` adds those of an output of the engine to the sequence of `prompt`. `speed` is the planned
    speed, and `pace` collects the measured one.
    """

    def __init__(
        self,
        sequence: Sequence,
        text: TextProcessor,
        prompt: Prompt,
        sampling: Sampling,
        speed: SpeedEstimate | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.sequence = sequence
        self.queue = deque[Event]()
        self.tokenizer = text.tokenizer
        self._calls = prompt.new_calls() if prompt.new_calls else None
        self._thoughts = prompt.new_thoughts() if prompt.new_thoughts else None
        self._is_constrained = prompt.new_constraint is not None
        shown = self._calls.shown if self._calls else frozenset[str]()
        if sampling.shows_control:
            shown = frozenset(text.tokenizer.control_ids)
        self._decoder = text.stream_decoder(
            is_exact=prompt.has_grammar, is_chat=prompt.is_chat, shown=shown
        )
        self._marks = text.usual_marks(prompt.opening) if prompt.is_chat else None
        self._sampling = sampling
        self._stops = StopStrings(sampling.stop, keeps=sampling.keeps_stop)
        #: White space before a possible call: it is the template's and not the text's.
        self._space = ""
        self._num_characters = len(prompt.opening)
        self._speed = speed
        self.num_tokens = 0
        self._pace, self._step_s = pace or Pace(), math.inf
        self.start_s = self._first_s = self._last_s = self._mark_s = time.perf_counter()
        self.queue.extend(self._split(prompt.opening))

    def take(self, output: TokenOutput) -> None:
        """Add the events of a token, or of the end."""
        reason = output.finish_reason
        if output.token is not None:
            self._count(output.time_s)
            self._add_token(output.token)
            if self._stops.found is not None:
                reason = "stop"
        if reason is not None:
            self.finish(reason)

    def _has_text(self, token: int) -> bool:
        """Whether a token is part of the reply's text."""
        if token not in self.sequence.stop_ids:
            return True
        return self._sampling.keeps_stop and token in self._sampling.stop_token_ids

    def finish(self, reason: FinishReason) -> None:
        """End the sequence; add the rest of the text, and the end."""
        self.sequence.abort()
        if self._marks is not None:
            self._add(self._split(self._marks.finish()))
        if self._calls is not None:
            self._add(self._calls.finish())
        is_called = self._calls is not None and self._calls.num_calls
        if rest := ("" if is_called else self._space) + self._stops.finish():
            self.queue.append(TextDelta(rest))
        if self._stops.found is not None:
            reason = "stop"
        elif is_called and reason == "stop":
            reason = "tool_calls"
        sequence = self.sequence
        drafted = tuple(takewhile(bool, sequence.drafts.drafted))
        usage = ReplyUsage(
            prompt_tokens=sequence.num_prompt_tokens,
            completion_tokens=self.num_tokens,
            cached_tokens=sequence.num_cached_tokens,
            prompt_s=self._first_s - self.start_s,
            completion_s=self._last_s - self._first_s,
            planned=self._planned_rates(),
            drafts=sequence.drafts.drafts,
            drafted_tokens=sequence.drafts.drafted_tokens,
            accepted_tokens=sequence.drafts.accepted_tokens,
            drafted_by_position=drafted,
            accepted_by_position=tuple(sequence.drafts.accepted[: len(drafted)]),
            draft_gain=self._draft_gain(),
            reasoning_tokens=self._thoughts.num_tokens if self._thoughts else 0,
        )
        self.queue.append(Finished(reason, usage, self._stops.found))

    def prompt_logprobs(self, text: str | None = None) -> tuple[TokenLogprob, ...] | None:
        """Those of the prompt's tokens after the first, once there is an output; None if not asked.

        `text` is what the prompt was made of; None if that was token ids.
        """
        scores = self.sequence.prompt_scores
        if scores is None:
            return None
        offsets = prompt_offsets(self.tokenizer, scores.ids, text)
        tokens = zip(scores.tokens, offsets[1:], strict=True)
        return tuple(self._logprob(each, each.logprob, offset) for each, offset in tokens)

    def _count(self, time_s: float) -> None:
        self._last_s = time_s
        if self.num_tokens == 0:
            self._first_s = self._mark_s = time_s
        elif self.num_tokens % TIMED_STEPS == 0:
            self._step_s = min(self._step_s, (time_s - self._mark_s) / TIMED_STEPS)
            self._mark_s = time_s
        self.num_tokens += 1

    def _add_token(self, token: SampledToken) -> None:
        logprobs: tuple[TokenLogprob, ...] = ()
        if token.logprob is not None:
            logprobs = (self._logprob(token, token.logprob, self._num_characters),)
        text = ""
        if self._has_text(token.id):
            if self._thoughts is not None:
                self._thoughts.push(token.id)
            text = self._decoder.push(token.id)
            text = self._marks.feed(text) if self._marks else text
        self._num_characters += len(text)
        self._add(self._split(text), logprobs)

    def _split(self, text: str) -> Collection[Event]:
        """Text, and calls after it; stop strings are searched for in the text alone."""
        if self._calls is not None:
            return self._calls.push(text)
        return [TextDelta(text)] if text else []

    def _add(self, found: Collection[Event], logprobs: tuple[TokenLogprob, ...] = ()) -> None:
        """Queue text and calls, as far as no stop string comes before them."""
        calls = [each for each in found if isinstance(each, ToolCallDelta)]
        text = "".join(each.text for each in found if isinstance(each, TextDelta))
        if self.num_tokens > self._sampling.min_tokens:  # else no text ends the reply yet
            text = self._stops.push(text) + (self._stops.finish() if calls else "")
        if self._calls is not None:
            text = self._space + text
            self._space = text[len(text.rstrip()) :]
            text = text.rstrip()
        if text or logprobs:
            self.queue.append(TextDelta(text, logprobs))
        if self._stops.found is None:
            self.queue.extend(calls)

    def _planned_rates(self) -> PlannedRates | None:
        """None if the reply took time for something that the plan's rates leave out."""
        sequence = self.sequence
        takes_longer = sequence.images or self._is_constrained or sequence.prompt_scores
        if self._speed is None or sequence.is_batched or takes_longer:
            return None
        computed = max(sequence.num_prompt_tokens - sequence.num_cached_tokens, 1)
        if not sequence.num_cached_tokens and self.num_tokens:
            self._pace.add_prompt(computed, self._first_s - self.start_s)
        if sequence.drafts.drafts:  # its steps have other numbers of tokens
            self._add_drafts()
            return None
        if self._step_s < math.inf:
            self._pace.add_step(self._step_s)
        is_long = computed >= LEAST_PROMPT_TOKENS
        prompt = self._speed.prompt_of(computed) if is_long else None
        middle = sequence.num_prompt_tokens + self.num_tokens // 2
        decode = self._speed.decode_at(middle)
        return PlannedRates(prompt and (prompt.low, prompt.high), (decode.low, decode.high))

    def _draft_gain(self) -> float | None:
        """How many times as fast the reply was as without its drafts, if that is known."""
        sequence = self.sequence
        seconds: float = self._last_s - self._first_s
        plain_s = sequence.drafts.plain_s
        if plain_s is None or sequence.is_batched or self._is_constrained or seconds <= 0:
            return None
        return (self.num_tokens - 1) * plain_s / seconds

    def _add_drafts(self) -> None:
        gain, counts = self._draft_gain(), self.sequence.drafts
        if gain:
            tokens = self.num_tokens - 1
            steps = max(tokens - counts.accepted_tokens, counts.drafts)
            drafts = DraftRecord(
                steps, counts.drafts, counts.drafted_tokens, counts.accepted_tokens, tokens / gain
            )
            self._pace.drafts = self._pace.drafts.plus(drafts)

    def _logprob(
        self, token: SampledToken | ScoredToken, logprob: float, offset: int
    ) -> TokenLogprob:
        label = self.tokenizer.label
        top = tuple((label(id), value) for id, value in token.top)
        return TokenLogprob(label(token.id), logprob, top, offset)

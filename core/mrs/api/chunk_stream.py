"""Turn the events of replies into chunks, or into whole replies with usage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from mrs.api.responses import Logprobs, ResponseLogprob, TopLogprob, Usage
from mrs.events import Event, Finished, ReplyUsage, TextDelta, TokenLogprob, ToolCallDelta

Response_co = TypeVar("Response_co", covariant=True)


class Events(Protocol):
    """The events of one reply, an iterator; `close` cancels the reply."""

    def __next__(self) -> Event: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Chunk:
    """New text of the reply `index`; the last chunk of a reply has a finish reason and a usage."""

    index: int
    text: str = ""
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    calls: tuple[ToolCallDelta, ...] = ()


class ChunkStream(Generic[Response_co]):
    """Iterator over the chunks of a response as they are generated; each reply begins with `start`.

    `close` ends it, from another thread too. A KeyboardInterrupt cancels the replies and is raised
    again.
    """

    def __init__(
        self, replies: Sequence[Events], make: Callable[[Chunk], Response_co], start: str = ""
    ) -> None:
        self._replies = replies
        self._make = make
        self._chunks = _chunks(replies, start)
        self._is_closed = False

    def __repr__(self) -> str:
        replies = "1 reply" if len(self._replies) == 1 else f"{len(self._replies)} replies"
        return f"<ChunkStream of {replies}{', closed' * self._is_closed}>"

    def __iter__(self) -> ChunkStream[Response_co]:
        return self

    def __next__(self) -> Response_co:
        try:
            chunk = next(self._chunks)
        except KeyboardInterrupt:
            if self._is_closed:
                raise StopIteration from None
            self.close()
            raise
        return self._make(chunk)

    def close(self) -> None:
        """Cancel all replies that are not finished."""
        self._is_closed = True
        for reply in self._replies:
            reply.close()


Whole = TypeVar("Whole")
Part = TypeVar("Part")


@dataclass(frozen=True)
class BegunReplies(Generic[Whole, Part]):
    """Replies that are being computed, to be read once: whole, or in chunks."""

    replies: Sequence[Events]
    make_whole: Callable[[list[Collected]], Whole]
    make_part: Callable[[Chunk], Part]
    start: str = ""

    def whole(self) -> Whole:
        """Wait for the replies. A KeyboardInterrupt cancels all of them."""
        return self.make_whole(collect(self.replies))

    def stream(self) -> ChunkStream[Part]:
        """The chunks as they are generated."""
        return ChunkStream(self.replies, self.make_part, self.start)

    def close(self) -> None:
        """Cancel all replies that are not finished. Any thread may call this."""
        for reply in self.replies:
            reply.close()


def _chunks(replies: Sequence[Events], start: str) -> Iterator[Chunk]:
    """The chunks of all replies, round robin over those that are not finished."""
    open_replies = dict(enumerate(replies))
    if start:
        yield from (Chunk(index, start) for index in open_replies)
    while open_replies:
        for index, reply in list(open_replies.items()):
            event = next(reply, None)
            if isinstance(event, TextDelta):
                yield Chunk(index, event.text, logprobs_of(event.logprobs))
                continue
            if isinstance(event, ToolCallDelta):
                yield Chunk(index, calls=(event,))
                continue
            del open_replies[index]
            if isinstance(event, Finished):
                if event.reason == "cancelled":
                    raise KeyboardInterrupt
                yield Chunk(index, finish_reason=event.reason, usage=total_usage([event.usage]))


@dataclass(frozen=True)
class Collected:
    """One whole reply."""

    text: str
    logprobs: Logprobs | None
    finish_reason: str
    usage: ReplyUsage
    calls: tuple[ToolCallDelta, ...] = ()
    prompt_logprobs: list[ResponseLogprob] | None = None


def collect(replies: Sequence[Events]) -> list[Collected]:
    """Wait for whole replies. A KeyboardInterrupt cancels all of them."""
    try:
        return [_collected(reply) for reply in replies]
    finally:
        for reply in replies:
            reply.close()


def _collected(reply: Events) -> Collected:
    deltas: list[TextDelta] = []
    parts: list[ToolCallDelta] = []
    while not isinstance(event := next(reply), Finished):
        if isinstance(event, TextDelta):
            deltas.append(event)
        else:
            parts.append(event)
    if event.reason == "cancelled":
        raise KeyboardInterrupt
    scores = event.prompt_logprobs
    return Collected(
        "".join(delta.text for delta in deltas),
        logprobs_of([each for delta in deltas for each in delta.logprobs]),
        event.reason,
        event.usage,
        whole_calls(parts),
        None if scores is None else list(map(_entry, scores)),
    )


def whole_calls(parts: Sequence[ToolCallDelta]) -> tuple[ToolCallDelta, ...]:
    """The calls whose parts these are."""
    heads = [part for part in parts if part.name is not None]
    return tuple(
        replace(
            head, arguments="".join(part.arguments for part in parts if part.index == head.index)
        )
        for head in heads
    )


def logprobs_of(tokens: Sequence[TokenLogprob]) -> Logprobs | None:
    """The log probabilities of `tokens` as a response has them; None for no tokens."""
    if not tokens:
        return None
    return Logprobs(list(map(_entry, tokens)))


def _entry(token: TokenLogprob) -> ResponseLogprob:
    top = [TopLogprob(_text(each), value, list(each)) for each, value in token.top]
    return ResponseLogprob(_text(token.token), token.logprob, list(token.token), top)


def _text(token: bytes) -> str:
    return token.decode("utf-8", "replace")


def total_usage(replies: Sequence[ReplyUsage]) -> Usage:
    """The usage of a response: token counts are summed, times are those of the slowest reply."""
    prompt = sum(each.prompt_tokens for each in replies)
    completion = sum(each.completion_tokens for each in replies)
    prompt_s = max(each.prompt_s for each in replies)
    completion_s = max(each.completion_s for each in replies)
    planned = replies[0].planned if len(replies) == 1 else None
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        cached_tokens=sum(each.cached_tokens for each in replies),
        avg_tok_per_sec=_rate(prompt + completion, prompt_s + completion_s),
        avg_prompt_tok_per_sec=_rate(prompt, prompt_s),
        avg_compl_tok_per_sec=_rate(completion - len(replies), completion_s),
        total_time_sec=prompt_s + completion_s,
        total_prompt_time_sec=prompt_s,
        total_completion_time_sec=completion_s,
        planned_prompt_tok_per_sec=planned.prompt_tokens_per_s if planned else None,
        planned_compl_tok_per_sec=planned.completion_tokens_per_s if planned else None,
        drafts=sum(each.drafts for each in replies),
        drafted_tokens=sum(each.drafted_tokens for each in replies),
        accepted_tokens=sum(each.accepted_tokens for each in replies),
        reasoning_tokens=sum(each.reasoning_tokens for each in replies),
    )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if count > 0 and seconds > 0 else 0.0

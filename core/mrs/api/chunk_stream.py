"""From the events of replies to the parts of responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from mrs.api.responses import Logprobs, ResponseLogprob, TopLogprob, Usage
from mrs.events import Event, Finished, TextDelta, TokenLogprob
from mrs.events import Usage as ReplyUsage

Response_co = TypeVar("Response_co", covariant=True)


class Events(Protocol):
    """The events of one reply."""

    def __next__(self) -> Event: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Chunk:
    """More of one of several replies; its last chunk has a reason and a usage."""

    index: int
    text: str = ""
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    usage: Usage | None = None


class ChunkStream(Generic[Response_co]):
    """The chunks of a response as they are made, an iterator; `start` comes before each reply.

    `close` ends it, from another thread too. A KeyboardInterrupt ends the computing and goes on to
    the caller.
    """

    def __init__(
        self, replies: Sequence[Events], make: Callable[[Chunk], Response_co], start: str = ""
    ) -> None:
        self._replies = replies
        self._make = make
        self._chunks = _chunks(replies, start)
        self._is_closed = False

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
        """Stop computing what was not taken yet."""
        self._is_closed = True
        for reply in self._replies:
            reply.close()


def _chunks(replies: Sequence[Events], start: str) -> Iterator[Chunk]:
    """All replies' chunks, one after another from each that is not finished."""
    open_replies = dict(enumerate(replies))
    if start:
        yield from (Chunk(index, start) for index in open_replies)
    while open_replies:
        for index, reply in list(open_replies.items()):
            event = next(reply, None)
            if isinstance(event, TextDelta):
                yield Chunk(index, event.text, logprobs_of(event.logprobs))
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


def collect(replies: Sequence[Events]) -> list[Collected]:
    """Wait for whole replies. A KeyboardInterrupt stops them all."""
    try:
        return [_collected(reply) for reply in replies]
    finally:
        for reply in replies:
            reply.close()


def _collected(reply: Events) -> Collected:
    said: list[TextDelta] = []
    while isinstance(event := next(reply), TextDelta):
        said.append(event)
    if event.reason == "cancelled":
        raise KeyboardInterrupt
    return Collected(
        "".join(delta.text for delta in said),
        logprobs_of([each for delta in said for each in delta.logprobs]),
        event.reason,
        event.usage,
    )


def logprobs_of(tokens: Sequence[TokenLogprob]) -> Logprobs | None:
    """As a response has them; None for none."""
    if not tokens:
        return None
    return Logprobs(
        [
            ResponseLogprob(
                _text(each.token),
                each.logprob,
                list(each.token),
                [TopLogprob(_text(token), value, list(token)) for token, value in each.top],
            )
            for each in tokens
        ]
    )


def _text(token: bytes) -> str:
    return token.decode("utf-8", "replace")


def total_usage(replies: Sequence[ReplyUsage]) -> Usage:
    """The counts of replies that were made together, and the times of the slowest."""
    prompt = sum(each.prompt_tokens for each in replies)
    made = sum(each.completion_tokens for each in replies)
    prompt_s = max(each.prompt_s for each in replies)
    made_s = max(each.completion_s for each in replies)
    planned = replies[0].planned if len(replies) == 1 else None
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=made,
        total_tokens=prompt + made,
        cached_tokens=sum(each.cached_tokens for each in replies),
        avg_tok_per_sec=_rate(prompt + made, prompt_s + made_s),
        avg_prompt_tok_per_sec=_rate(prompt, prompt_s),
        avg_compl_tok_per_sec=_rate(made - len(replies), made_s),
        total_time_sec=prompt_s + made_s,
        total_prompt_time_sec=prompt_s,
        total_completion_time_sec=made_s,
        planned_prompt_tok_per_sec=planned.prompt_tokens_per_s if planned else None,
        planned_compl_tok_per_sec=planned.completion_tokens_per_s if planned else None,
    )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if count > 0 and seconds > 0 else 0.0

"""The replies to one request, read without a thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from mrs.engine.loop import Outbox, error_of
from mrs.engine.sequence import Sequence
from mrs.events import Event, Finished, TextDelta
from mrs.server.http.bodies import no_memory_now
from mrs.server.http.errors import ApiError
from mrs.server.replies.relay import Output, OutputRelay
from mrs.server.replies.unread import UnreadBytes

if TYPE_CHECKING:
    from mrs.engine.reply_events import ReplyEvents

#: Most bytes of a reply that may be unread, by the estimate of `_size_bytes`.
UNREAD_BYTES = 1 << 20
#: How long a reader has to catch up before its replies end.
_CATCH_UP_S = 0.5


class GroupEvent(NamedTuple):
    """An event of reply number `reply`."""

    reply: int
    event: Event


class ReplyGroup:
    """Iterates over the events of all replies, in the order in which the engine makes them.

    Ends after every reply's `Finished`; an error of one ends all. `close` aborts those that are
    not finished, before the engine's next step. A reader that leaves too much unread, because its
    client does, gets an error after what there is so far.
    """

    def __init__(
        self,
        relay: OutputRelay,
        on_close: Callable[[ReplyGroup], object] = lambda _: None,
        unread: UnreadBytes | None = None,
    ) -> None:
        self._unread = unread or UnreadBytes()
        self._unread.begin(self)
        self._relay = relay
        self._on_close = on_close
        self.replies: list[_GroupedReply] = []
        self._events: deque[GroupEvent] = deque()
        self._error: Exception | None = None
        #: Bytes of events so far, and of those that were read.
        self._added_bytes = self._read_bytes = 0
        self._catching_up: asyncio.TimerHandle | None = None
        self._is_kept = False
        self._changed = asyncio.Event()

    def add(self, start: Callable[[Outbox], ReplyEvents]) -> None:
        """Start one more reply; `start` gets the outbox of its sequence."""
        self.replies.append(_GroupedReply(self, len(self.replies), self._relay))
        try:
            self.replies[-1].begin(start)
        except BaseException:
            self.close()
            raise

    def __aiter__(self) -> ReplyGroup:
        return self

    async def __anext__(self) -> GroupEvent:
        while not self._events:
            if self._error is not None:
                raise self._error
            if all(reply.is_finished for reply in self.replies):
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        event = self._events.popleft()
        if not self._is_kept:
            self._note_read(_size_bytes(event.event))
        return event

    def keep(self) -> None:
        """Count what is read until `drop`: a whole reply is made of it."""
        self._is_kept = True

    def _note_read(self, size_bytes: int) -> None:
        self._read_bytes += size_bytes
        self._unread.add(-size_bytes)

    @property
    def unread_bytes(self) -> int:
        """About what the events take that are not read yet."""
        return self._added_bytes - self._read_bytes

    @property
    def sequences(self) -> list[Sequence]:
        """The sequences of the replies that are not finished."""
        return [
            reply.events.sequence
            for reply in self.replies
            if reply.events is not None and not reply.is_finished
        ]

    @property
    def is_waiting(self) -> bool:
        """Whether none of the replies has begun."""
        return all(each.started_s is None for each in self.sequences)

    def events_of(self, index: int) -> ReplyEvents:
        """The events of a reply that was started."""
        events = self.replies[index].events
        assert events is not None
        return events

    def close(self) -> None:
        """End all replies; what is there can still be read."""
        for reply in self.replies:
            reply.close()
        self._on_close(self)

    def drop(self) -> None:
        """Close, and forget what was not read."""
        self.close()
        self._forget()
        self._unread.end(self)

    def _forget(self) -> None:
        self._events.clear()
        self._note_read(self.unread_bytes)

    def add_events(self, index: int, events: ReplyEvents) -> None:
        """Pass on what the reply `index` has so far."""
        self._events += [GroupEvent(index, each) for each in events.queue]
        size_bytes = sum(map(_size_bytes, events.queue))
        self._added_bytes += size_bytes
        events.queue.clear()
        self._changed.set()
        if self.unread_bytes > UNREAD_BYTES * len(self.replies) and not self._is_kept:
            self.expect_reader()
        self._unread.add(size_bytes)

    def expect_reader(self) -> None:
        """End if nobody has read for some time what is there now; at once if all of it is kept."""
        if self._is_kept:
            self.fail(no_memory_now())
        elif self._catching_up is None:
            loop = asyncio.get_running_loop()
            self._catching_up = loop.call_later(_CATCH_UP_S, self._catch_up, self._added_bytes)

    def _catch_up(self, added_bytes: int) -> None:
        """End if what was there some time ago is unread: a slow event loop is no such reader."""
        self._catching_up = None
        is_full = self._unread.is_full
        if self._read_bytes < added_bytes and (self.sequences or is_full):
            text = "the reply was ended, because the client did not read it: read it as it comes"
            self.fail(ApiError(408, text, code="slow_reader"))
            if is_full:
                self._forget()

    def fail(self, error: Exception) -> None:
        """End with `error`, after the events so far."""
        self._error = self._error or error
        self.close()
        self._changed.set()


class _GroupedReply:
    """One reply of a group; the outbox of its sequence."""

    def __init__(self, group: ReplyGroup, index: int, relay: OutputRelay) -> None:
        self._group = group
        self._index = index
        self._relay = relay
        self.is_finished = False
        self.events: ReplyEvents | None = None

    def begin(self, start: Callable[[Outbox], ReplyEvents]) -> None:
        self.events = start(self)
        self._pass_on(self.events)

    def put(self, output: Output, /) -> None:
        """Called by the engine's thread."""
        self._relay.put(self, output)

    def receive(self, output: Output) -> None:
        """Called on the event loop, after `begin`."""
        events = self.events
        if self.is_finished or events is None:
            return
        if output is None or output.token is None:
            error = error_of(events.sequence, output)
            if error is not None:
                self.is_finished = True
                self._group.fail(error)
                return
        if output is not None:
            events.take(output)
            self._pass_on(events)

    def _pass_on(self, events: ReplyEvents) -> None:
        if events.queue:
            self.is_finished = isinstance(events.queue[-1], Finished)
            self._group.add_events(self._index, events)

    def close(self) -> None:
        if self.events is not None and not self.is_finished:
            self.is_finished = True
            self.events.sequence.abort()


def _size_bytes(event: Event) -> int:
    """About what an event takes until it is read."""
    if not isinstance(event, TextDelta):
        return 500
    return 500 + len(event.text) + 200 * sum(1 + len(each.top) for each in event.logprobs)

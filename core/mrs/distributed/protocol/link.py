"""The control connection between the coordinator and a worker: messages, and signs of life."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeVar

from mrs.devices.host_memory import resident_bytes
from mrs.distributed.protocol.channel import Channel, Damaged
from mrs.distributed.protocol.failures import (
    BEAT_S,
    SILENCE_S,
    CoordinatorLeft,
    PeerFailed,
    PeerReported,
    RejoinAsked,
    start_thread,
    words_for,
)
from mrs.distributed.protocol.messages import (
    Beat,
    Failed,
    FromCoordinator,
    FromWorker,
    Goodbye,
    Message,
    Rejoin,
)
from mrs.errors import ExitCode, MrsError

_Kind = TypeVar("_Kind", bound=Message)


class Expected(NamedTuple):
    """The kinds of messages of a peer, and the most bytes of one and of those nobody has taken."""

    kinds: object
    most_bytes: int
    most_unread_bytes: int


#: A worker computes the steps of a prompt later than the coordinator sends them.
FROM_COORDINATOR = Expected(FromCoordinator, 64 << 20, 128 << 20)
FROM_WORKER = Expected(FromWorker, 1 << 20, 2 << 20)
#: The memory of a message in the queue, its bytes apart.
_MESSAGE_BYTES = 4096


class Link:
    """Sends and receives messages, and notices within SILENCE_S that the peer is lost.

    `doing` is what this process does, for the peer and for errors; `on_end` is called once, in
    another thread, with the reason why the connection has ended. Messages wait for `take`.
    """

    def __init__(
        self,
        channel: Channel,
        who: str,
        on_end: Callable[[Link, MrsError], None],
        expected: Expected = FROM_COORDINATOR,
    ) -> None:
        """Raises MrsError if no thread can start."""
        self.channel = channel
        self.who = who
        self.doing = "at the start"
        self._on_end = on_end
        self._peer_doing = ""
        #: The memory that the peer had a second ago, or less.
        self.peer_resident_bytes = 0
        self._heard_s = time.monotonic()
        self._messages: SimpleQueue[tuple[Message | MrsError, int]] = SimpleQueue()
        self._most_unread_bytes = expected.most_unread_bytes
        self._unread_bytes = 0
        self._is_closed = threading.Event()
        self._has_ended, self._lock = False, threading.Lock()
        channel.expect(expected.kinds, expected.most_bytes)
        channel.set_timeout(SILENCE_S)
        try:
            for work in (self._receive, self._beat):
                start_thread(work.__name__.strip("_"), work, self._fail)
        except MrsError:
            self.close()
            raise

    def send(self, message: Message) -> None:
        """Raises PeerFailed."""
        try:
            self.channel.send(message)
        except OSError as error:
            raise self._lost("cannot be reached", error) from error

    def take(self, kind: type[_Kind], timeout_s: float | None = None) -> _Kind:
        """The next message, which must be of that kind. Raises MrsError at the link's end.

        Raises PeerFailed if none comes in time.
        """
        try:
            message = self._next(timeout_s)
        except Empty:
            text = f"{self.who} has sent no {kind.__name__} within {timeout_s:g} s, {self.doing}"
            raise PeerFailed(text) from None
        if isinstance(message, MrsError):
            raise message
        if not isinstance(message, kind):
            raise Damaged(f"{self.who} says {type(message).__name__}, not {kind.__name__}")
        return message

    def _next(self, timeout_s: float | None) -> Message | MrsError:
        """The next one in the queue, where an error stays for the next one who asks."""
        message, size_bytes = self._messages.get(timeout=timeout_s)
        with self._lock:
            self._unread_bytes -= size_bytes
        if isinstance(message, MrsError):
            self.fail(message)
        return message

    def reason(self, timeout_s: float) -> MrsError | None:
        """Why the link has ended, None if it has not; messages before that are dropped."""
        until_s = time.monotonic() + timeout_s
        while True:
            try:
                message = self._next(max(0.0, until_s - time.monotonic()))
            except Empty:
                return None
            if isinstance(message, MrsError):
                return message

    def fail(self, error: MrsError) -> None:
        """Let whoever waits for a message get this error."""
        self._messages.put((error, 0))

    def close(self) -> None:
        """End it without a reason from the peer; who waits for a message learns that, too."""
        self._is_closed.set()
        self.channel.close()
        self.fail(PeerFailed(f"the connection to {self.who} was closed"))

    def _receive(self) -> None:
        """Until the link's end."""
        reason = None
        while reason is None:
            message, _ = self.channel.receive()
            self._heard_s = time.monotonic()
            if isinstance(message, Beat):
                self._peer_doing = message.doing
                self.peer_resident_bytes = message.resident_bytes
            else:
                reason = self._reason_in(message)
                if reason is None:
                    self._keep(message)
        self._end(reason)

    def _keep(self, message: Message) -> None:
        """For `take`. Raises Damaged if too many are there."""
        size_bytes = self.channel.message_bytes + _MESSAGE_BYTES
        with self._lock:
            self._unread_bytes += size_bytes
        if self._unread_bytes > self._most_unread_bytes:
            raise Damaged(f"more messages than are taken, with one more {type(message).__name__}")
        self._messages.put((message, size_bytes))

    def _beat(self) -> None:
        while not self._is_closed.wait(BEAT_S):
            beat = Beat(self.doing, resident_bytes())
            try:
                self.channel.send(beat)
            except OSError:
                return  # the receiving thread learns it, too, and says more

    def _reason_in(self, message: Message) -> MrsError | None:
        """Why the link ends with this message; None if it goes on."""
        if isinstance(message, Goodbye):
            return CoordinatorLeft(f"{self.who} has left")
        if isinstance(message, Rejoin):
            return RejoinAsked(message.text, message.within_s)
        return _reported(message) if isinstance(message, Failed) else None

    def _fail(self, error: Exception) -> None:
        """What a thread of the link has raised ends it."""
        if isinstance(error, Damaged):
            text = f"{self.who}, {self.doing}: {error.what}"
            self._end(Damaged(text, where=error.where))
        elif isinstance(error, MrsError):
            self._end(error)
        elif isinstance(error, TimeoutError):
            self._end(self._lost("does not answer"))
        elif isinstance(error, EOFError):
            self._end(self._lost("has ended"))
        elif isinstance(error, OSError):
            self._end(self._lost("cannot be reached", error))
        else:
            self._end(PeerFailed(f"the link to {self.who} has failed", where=words_for(error)))

    def _end(self, error: MrsError) -> None:
        with self._lock:
            is_first, self._has_ended = not self._has_ended, True
        if is_first and not self._is_closed.is_set():
            self.fail(error)
            self._on_end(self, error)

    def _lost(self, how: str, error: OSError | None = None) -> PeerFailed:
        """Who is lost, what happened and when, and what was last heard."""
        if isinstance(error, ConnectionError):
            how = "has ended"
        elif error is not None and error.strerror:
            how += f", {error.strerror.lower()},"
        last = f"last heard {time.monotonic() - self._heard_s:.1f} s ago"
        heard = f"{last}: {self._peer_doing}" if self._peer_doing else last
        return PeerFailed(f"{self.who} {how} {self.doing}", where=heard)


def _reported(message: Failed) -> MrsError:
    """What the peer has said, with its exit code if that is one of an error."""
    error = PeerReported(message.text)
    with suppress(ValueError):
        error.exit_code = ExitCode(message.exit_code) or error.exit_code
    return error

"""The control connection between the head and a worker: messages, and signs of life."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

from mrs.devices.host_memory import resident_bytes
from mrs.distributed.channel import Channel, Damaged
from mrs.distributed.failures import (
    BEAT_S,
    SILENCE_S,
    HeadLeft,
    PeerFailed,
    PeerReported,
    RejoinAsked,
    lost,
)
from mrs.distributed.messages import Beat, Failed, Goodbye, Message, Rejoin
from mrs.errors import MrsError

_Kind = TypeVar("_Kind", bound=Message)


class Link:
    """Sends and receives messages, and notices within SILENCE_S that the peer is lost.

    `doing` is what this process does, for the peer and for errors; `on_end` is called once, in
    another thread, with the reason why the connection has ended. Messages wait for `take`.
    """

    def __init__(
        self, channel: Channel, who: str, on_end: Callable[[Link, MrsError], None]
    ) -> None:
        self.channel = channel
        self.who = who
        self.doing = "at the start"
        self._on_end = on_end
        self._peer_doing = ""
        #: The memory that the peer had a second ago, or less.
        self.peer_resident_bytes = 0
        self._heard_s = time.monotonic()
        self._messages: SimpleQueue[Message | MrsError] = SimpleQueue()
        self._is_closed = threading.Event()
        channel.set_timeout(SILENCE_S)
        for work in (self._receive, self._beat):
            threading.Thread(target=work, name=f"mrs-{work.__name__}", daemon=True).start()

    def send(self, message: Message) -> None:
        """Raises PeerFailed."""
        try:
            self.channel.send(message)
        except OSError as error:
            raise self._lost("cannot be reached", error) from error

    def take(self, kind: type[_Kind], timeout_s: float | None = None) -> _Kind:
        """The next message, which must be of that kind. Raises MrsError at the link's end.

        Raises TimeoutError.
        """
        try:
            message = self._messages.get(timeout=timeout_s)
        except Empty:
            raise TimeoutError from None
        if isinstance(message, MrsError):
            self._messages.put(message)  # for the next one who asks
            raise message
        if not isinstance(message, kind):
            raise Damaged(f"{self.who} says {type(message).__name__}, not {kind.__name__}")
        return message

    def reason(self, timeout_s: float) -> MrsError | None:
        """Why the link has ended, None if it has not; messages before that are dropped."""
        until_s = time.monotonic() + timeout_s
        while True:
            try:
                message = self._messages.get(timeout=max(0.0, until_s - time.monotonic()))
            except Empty:
                return None
            if isinstance(message, MrsError):
                self._messages.put(message)
                return message

    def fail(self, error: MrsError) -> None:
        """Let whoever waits for a message get this error."""
        self._messages.put(error)

    def close(self) -> None:
        self._is_closed.set()
        self.channel.close()

    def _receive(self) -> None:
        try:
            while True:
                message, _ = self.channel.receive()
                self._heard_s = time.monotonic()
                if isinstance(message, Beat):
                    self._peer_doing = message.doing
                    self.peer_resident_bytes = message.resident_bytes
                elif isinstance(message, Goodbye):
                    return self._end(HeadLeft(f"{self.who} has left"))
                elif isinstance(message, Rejoin):
                    return self._end(RejoinAsked(message.text, message.within_s))
                elif isinstance(message, Failed):
                    return self._end(_reported(message))
                else:
                    self._messages.put(message)
        except TimeoutError:
            self._end(self._lost("does not answer"))
        except EOFError:
            self._end(self._lost("has ended"))
        except OSError as error:
            self._end(self._lost("cannot be reached", error))
        except MrsError as error:
            self._end(error)

    def _beat(self) -> None:
        while not self._is_closed.wait(BEAT_S):
            try:
                self.channel.send(Beat(self.doing, resident_bytes()))
            except OSError:
                return  # the receiving thread learns it, too, and says more

    def _end(self, error: MrsError) -> None:
        if not self._is_closed.is_set():
            self.fail(error)
            self._on_end(self, error)

    def _lost(self, how: str, error: OSError | None = None) -> PeerFailed:
        if isinstance(error, ConnectionError):
            how = "has ended"
        elif error is not None and error.strerror:
            how += f", {error.strerror.lower()},"
        heard_s_ago = time.monotonic() - self._heard_s
        return lost(self.who, how, self.doing, self._peer_doing, heard_s_ago)


def _reported(message: Failed) -> MrsError:
    error = PeerReported(message.text)
    error.exit_code = type(error.exit_code)(message.exit_code)
    return error

"""Who comes to the head's address: workers that join, and neighbours that attach."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from queue import Empty, SimpleQueue

from mrs.distributed.channel import Channel
from mrs.distributed.failures import SILENCE_S
from mrs.distributed.meeting import Listener
from mrs.distributed.messages import Attach, Failed, Join, Message
from mrs.distributed.threads import start_thread
from mrs.errors import ExitCode, MrsError

#: So many connections may wait for the head to look at them; each one is an open file.
_MOST_WAITING = 256
#: How long one that is refused may take to read why.
_TELL_S = 1.0
#: How often silent peers are looked at, while there are any.
_POLL_S = 0.01


class FirstMessages:
    """The peers of a listener with what they say first, in the order in which that comes.

    So nobody waits for another one that has proven the secret and says nothing. For one thread.
    """

    def __init__(self, listener: Listener) -> None:
        self._arrived = listener.arrived
        #: Those that have said nothing yet, and until when they may; the oldest first.
        self._silent: dict[Channel, float] = {}

    def next(self, limit_s: float = math.inf) -> tuple[Channel, Message] | None:
        """None at the end of the listener. Raises Empty after the limit."""
        until_s = time.monotonic() + limit_s
        while True:
            if (found := self._spoken()) is not None:
                return found
            rest_s = until_s - time.monotonic()
            wait_s = min(rest_s, _POLL_S) if self._silent else rest_s
            try:
                channel = self._arrived.get(timeout=None if wait_s == math.inf else max(wait_s, 0))
            except Empty:
                if rest_s <= 0:
                    raise
                continue
            if channel is None:
                for each in self._silent:
                    each.close()
                return None
            if len(self._silent) == _MOST_WAITING:
                self._drop(next(iter(self._silent)))
            channel.set_timeout(0.0)
            self._silent[channel] = time.monotonic() + SILENCE_S

    def _spoken(self) -> tuple[Channel, Message] | None:
        """One whose message is here; those that have left, or say nothing for too long, go."""
        now_s = time.monotonic()
        for channel, until_s in list(self._silent.items()):
            try:
                if channel.is_ready():
                    channel.set_timeout(None)
                    message, _ = channel.receive()
                    del self._silent[channel]
                    return channel, message
                is_over = now_s > until_s
            except (OSError, EOFError, MrsError):
                is_over = True
            if is_over:
                self._drop(channel)
        return None

    def _drop(self, channel: Channel) -> None:
        del self._silent[channel]
        channel.close()


class Arrivals:
    """Sorts the peers of a listener by their first message, until the listener is closed."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.joining: SimpleQueue[tuple[Channel, Join]] = SimpleQueue()
        self.attaching: SimpleQueue[tuple[Channel, Attach]] = SimpleQueue()
        self._workers: int | None = None
        start_thread("arrivals", self._sort, lambda error: self.close())

    def open(self) -> None:
        """Let workers join, as at the start."""
        self._workers = None

    def complete(self, workers: int) -> None:
        """All `workers` have joined: refuse further ones.

        Neighbours attach later. Connections of them that are there already are from before a
        failure.
        """
        self._workers = workers
        with suppress(Empty):
            while True:
                self._refuse(self.joining.get_nowait()[0])
        with suppress(Empty):
            while True:
                self.attaching.get_nowait()[0].close()

    def close(self) -> None:
        self.listener.close()

    def _sort(self) -> None:
        first = FirstMessages(self.listener)
        while (found := first.next()) is not None:
            channel, message = found
            if isinstance(message, Attach) and self.attaching.qsize() < _MOST_WAITING:
                self.attaching.put((channel, message))
            elif isinstance(message, Join) and self._has_room():
                self.joining.put((channel, message))
            else:
                self._refuse(channel)

    def _has_room(self) -> bool:
        return self._workers is None and self.joining.qsize() < _MOST_WAITING

    def _refuse(self, channel: Channel) -> None:
        text = f"the head has all of its workers ({self._workers})"
        with suppress(OSError):
            channel.set_timeout(_TELL_S)
            channel.send(Failed(text, int(ExitCode.USAGE)))
        channel.close()

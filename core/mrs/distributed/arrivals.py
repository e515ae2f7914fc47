"""Who comes to the head's address: workers that join, and neighbours that attach."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue

from mrs.distributed.protocol.channel import Channel
from mrs.distributed.protocol.failures import start_thread
from mrs.distributed.protocol.handshake import MOST_WAITING, FirstMessages, Listener
from mrs.distributed.protocol.messages import Attach, Failed, Join
from mrs.errors import ExitCode

#: How long one that is refused may take to read why.
_TELL_S = 1.0


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
            if isinstance(message, Attach) and self.attaching.qsize() < MOST_WAITING:
                self.attaching.put((channel, message))
            elif isinstance(message, Join) and self._has_room():
                self.joining.put((channel, message))
            else:
                self._refuse(channel)

    def _has_room(self) -> bool:
        return self._workers is None and self.joining.qsize() < MOST_WAITING

    def _refuse(self, channel: Channel) -> None:
        text = f"the head has all of its workers ({self._workers})"
        with suppress(OSError):
            channel.set_timeout(_TELL_S)
            channel.send(Failed(text, int(ExitCode.USAGE)))
        channel.close()

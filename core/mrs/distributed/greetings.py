"""Strangers at a listener: one thread for all of them, so many at a time, and a time for each.

A stranger costs a socket and a few KB until it has proven the secret. When there are too many, the
one that has been here longest goes: a peer of this program needs milliseconds.
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from mrs.distributed.channel import Channel

#: A peer has to prove the secret within this time, all of its messages together.
GREETING_S = 8.0
#: So many strangers are greeted at a time.
MOST_STRANGERS = 64
#: How long nothing is accepted after an error, and between two lines about such errors.
_PAUSE_S, _SAY_AGAIN_S = 0.1, 1.0
_logger = logging.getLogger(__name__)

#: Yields where it needs the next message of the stranger; returns when the secret is proven.
Greeting = Generator[None, None, None]


@dataclass
class _Stranger:
    """Somebody who has connected, and until when the greeting may take."""

    connection: socket.socket
    channel: Channel
    greeting: Greeting
    until_s: float


class Greetings:
    """Accepts connections of `listener` and greets them by `greet`.

    `on_arrived` gets the channels of those that are through, and `on_refused` what the others have
    raised. `step` in one thread, `wake` from any.
    """

    def __init__(
        self,
        listener: socket.socket,
        greet: Callable[[Channel], Greeting],
        on_arrived: Callable[[Channel], None],
        on_refused: Callable[[Exception], None],
    ) -> None:
        self._listener = listener
        self._greet = greet
        self._on_arrived = on_arrived
        self._on_refused = on_refused
        #: The oldest first.
        self._strangers: dict[int, _Stranger] = {}
        self._said_s = -_SAY_AGAIN_S
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        for stranger in list(self._strangers.values()):
            self._drop(stranger)
        self._selector.close()
        self._woken.close()
        self._waker.close()

    def wake(self) -> None:
        """Let `step` return."""
        with suppress(OSError):  # it has ended
            self._waker.send(b"\0")

    def step(self) -> None:
        """Wait until something happens, and see to it."""
        oldest = next(iter(self._strangers.values()), None)
        wait_s = None if oldest is None else max(oldest.until_s - time.monotonic(), 0.0)
        for key, _ in self._selector.select(wait_s):
            if key.fileobj is self._listener:
                self._accept()
            elif (stranger := self._strangers.get(key.fd)) is not None:
                self._go_on(stranger)
        now_s = time.monotonic()
        for stranger in list(self._strangers.values()):
            if stranger.until_s > now_s:
                break
            self._drop(stranger)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            self._make_room(error)
            return
        if len(self._strangers) == MOST_STRANGERS:
            self._drop(next(iter(self._strangers.values())))
        try:
            channel = Channel(connection)
        except OSError:  # it has left already
            connection.close()
            return
        channel.set_timeout(0.0)
        until_s = time.monotonic() + GREETING_S
        stranger = _Stranger(connection, channel, self._greet(channel), until_s)
        next(stranger.greeting)
        self._strangers[connection.fileno()] = stranger
        self._selector.register(connection, selectors.EVENT_READ)

    def _make_room(self, error: OSError) -> None:
        """Nobody can be accepted: this process has too many files for the moment, or is closed."""
        if self._listener.fileno() < 0:
            return
        if self._strangers:
            self._drop(next(iter(self._strangers.values())))
        now_s = time.monotonic()
        if now_s - self._said_s >= _SAY_AGAIN_S:
            self._said_s = now_s
            _logger.warning("cannot accept a worker: %s", error.strerror or error)
        time.sleep(_PAUSE_S)

    def _go_on(self, stranger: _Stranger) -> None:
        try:
            while stranger.channel.is_ready():
                next(stranger.greeting)
        except StopIteration:
            self._forget(stranger)
            stranger.channel.set_timeout(None)
            self._on_arrived(stranger.channel)
        except Exception as error:  # noqa: BLE001 - no stranger may end the others' greetings
            self._drop(stranger)
            self._on_refused(error)

    def _forget(self, stranger: _Stranger) -> None:
        del self._strangers[stranger.connection.fileno()]
        self._selector.unregister(stranger.connection)

    def _drop(self, stranger: _Stranger) -> None:
        self._forget(stranger)
        stranger.channel.close()

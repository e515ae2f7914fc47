"""How two processes meet: one listens, one dials, both prove that they know the secret.

One thread of the listener greets all strangers: a limited number at a time, each for a limited
time. A stranger costs a socket and a few KB until it has proven the secret. When there are too
many, the one that has been here longest goes: a peer of this program needs milliseconds.
"""

from __future__ import annotations

import errno
import logging
import math
import selectors
import socket
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TypeVar

import msgspec

from mrs.distributed.protocol.channel import Channel, Damaged
from mrs.distributed.protocol.failures import SILENCE_S, ClusterRefused, start_thread
from mrs.distributed.protocol.messages import PROTOCOL, Challenge, Hello, Message, Proof, Refused
from mrs.distributed.protocol.secret import (
    FILE_VARIABLE,
    NONCE_BYTES,
    VARIABLE,
    SessionKeys,
    new_nonce,
    stretched,
)
from mrs.errors import MrsError, UsageError

#: A peer has to prove the secret within this time, all of its messages together.
GREETING_S = 8.0
#: Maximum number of strangers that are greeted at a time.
MOST_STRANGERS = 64
#: How long nothing is accepted after an error, and between two lines about such errors.
_PAUSE_S, _WARN_AGAIN_S = 0.1, 1.0
_logger = logging.getLogger(__name__)
#: Yields where it needs the next message of the stranger; returns when the secret is proven.
Greeting = Generator[None, None, None]
#: Maximum number of refusals that nobody has read yet; strangers cannot add more.
_MOST_REFUSED = 64
#: What proofs and keys are for.
_DIALS, _LISTENS = b"who dials", b"who listens"
_TO_DIALER, _TO_LISTENER = b"frames to who dials", b"frames to who listens"
_DIFFERENT = "the secrets differ"
_Address = tuple[str, int]
_Kind = TypeVar("_Kind", bound=Message)


@dataclass
class _Stranger:
    """Somebody who has connected, and until when the greeting may take."""

    connection: socket.socket
    channel: Channel
    greeting: Greeting
    until_s: float


def program_version() -> str:
    from importlib.metadata import version

    return version("mrs")


def parse_address(text: str, flag: str) -> _Address:
    """HOST:PORT, or [HOST]:PORT for IPv6. Raises UsageError."""
    host, _, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(
            f"{text!r} is not an address", where=flag, hint="expected such as 192.168.1.10:9000"
        )
    return host, int(port)


class NotGreeted(TimeoutError):
    """Who accepts connections says nothing: another program, or a coordinator that is stopped."""


class Listener:
    """Accepts peers at an address; each one that knows the secret is put into `arrived`.

    A peer that is refused gets the reason, and the reason is put into `refused`.
    """

    def __init__(self, address: _Address, secret: bytes) -> None:
        """Raises UsageError if the address cannot be had, and for a short secret."""
        self._key = stretched(secret)
        self._socket = bound_socket(address, "choose another one with --listen", "--listen")
        host, port = self._socket.getsockname()[:2]
        #: The address that was bound; it can still be read when the listener has been closed.
        self.address: _Address = (host, port)
        #: None is the end of the listener.
        self.arrived: SimpleQueue[Channel | None] = SimpleQueue()
        self.refused: SimpleQueue[str] = SimpleQueue()
        self._is_closed = threading.Event()
        #: By the descriptor of the connection, the oldest first.
        self._strangers: dict[int, _Stranger] = {}
        self._warned_s = -_WARN_AGAIN_S
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._socket.setblocking(False)
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        start_thread("listen", self._serve, lambda error: self.close())

    def close(self) -> None:
        self._is_closed.set()
        self._socket.close()
        with suppress(OSError):  # the thread has ended
            self._waker.send(b"\0")

    def _serve(self) -> None:
        try:
            while not self._is_closed.is_set():
                self._serve_next()
        finally:
            for stranger in list(self._strangers.values()):
                self._drop(stranger)
            self._selector.close()
            self._woken.close()
            self._waker.close()
            self.arrived.put(None)

    def _serve_next(self) -> None:
        """Wait until something happens, and see to it."""
        oldest = next(iter(self._strangers.values()), None)
        wait_s = None if oldest is None else max(oldest.until_s - time.monotonic(), 0.0)
        for key, _ in self._selector.select(wait_s):
            if key.fileobj is self._socket:
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
            connection, _ = self._socket.accept()
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
        stranger = _Stranger(connection, channel, welcome(channel, self._key), until_s)
        next(stranger.greeting)
        self._strangers[connection.fileno()] = stranger
        self._selector.register(connection, selectors.EVENT_READ)

    def _make_room(self, error: OSError) -> None:
        """Nobody can be accepted: this process has too many files for the moment, or is closed."""
        if self._socket.fileno() < 0:
            return
        if self._strangers:
            self._drop(next(iter(self._strangers.values())))
        now_s = time.monotonic()
        if now_s - self._warned_s >= _WARN_AGAIN_S:
            self._warned_s = now_s
            _logger.warning("cannot accept a worker: %s", error.strerror or error)
        time.sleep(_PAUSE_S)

    def _go_on(self, stranger: _Stranger) -> None:
        try:
            while stranger.channel.is_ready():
                next(stranger.greeting)
        except StopIteration:
            self._forget(stranger)
            stranger.channel.set_timeout(None)
            if self._is_closed.is_set():  # nobody takes it any more
                stranger.channel.close()
            self.arrived.put(stranger.channel)
        except Exception as error:  # noqa: BLE001 - no stranger may end the others' greetings
            self._drop(stranger)
            if isinstance(error, ClusterRefused) and self.refused.qsize() < _MOST_REFUSED:
                self.refused.put(str(error))

    def _forget(self, stranger: _Stranger) -> None:
        del self._strangers[stranger.connection.fileno()]
        self._selector.unregister(stranger.connection)

    def _drop(self, stranger: _Stranger) -> None:
        self._forget(stranger)
        stranger.channel.close()


def welcome(channel: Channel, key: bytes) -> Greeting:
    """The listener's part of the greeting; yields where it needs the next message.

    `key` is the stretched secret. Nothing that depends on it is sent before the other side has
    proven that it has the same.

    Raises ClusterRefused, OSError, EOFError, Damaged.
    """
    yield
    hello = _expect(channel, Hello)
    version = program_version()
    if (reason := _mismatch(hello, version)) is not None:
        channel.send(Refused(reason))
        raise ClusterRefused(f"{channel.peer_host} was refused", where=reason)
    challenge = Challenge(PROTOCOL, version, new_nonce())
    channel.send(challenge)
    session = _session(key, hello, challenge)
    yield
    answer = _expect(channel, Proof)
    if not session.is_proof(answer.proof, _DIALS):
        with suppress(OSError):
            channel.send(Refused(_DIFFERENT))
        raise ClusterRefused(f"{channel.peer_host} was refused", where=_DIFFERENT)
    channel.send(Proof(session.derived(_LISTENS)))
    channel.open(session.derived(_TO_DIALER), session.derived(_TO_LISTENER))


def dial(address: _Address, secret: bytes) -> Channel:
    """A connection to a listener. Raises OSError if nobody listens (NotGreeted), ClusterRefused.

    A tunnel accepts connections while nobody listens at its other end, and closes them.
    """
    key = stretched(secret)
    channel = Channel(socket.create_connection(address, timeout=GREETING_S))
    try:
        return _introduced(channel, f"{address[0]}:{address[1]}", key)
    except EOFError:
        channel.close()
        raise ConnectionAbortedError(errno.ECONNABORTED, "it closes the connection") from None
    except TimeoutError:
        channel.close()
        raise NotGreeted(errno.ETIMEDOUT, "it accepts the connection and says nothing") from None
    except Damaged as error:
        channel.close()
        where = f"{address[0]}:{address[1]}"
        raise ClusterRefused(f"{where} is no coordinator of this program") from error
    except BaseException:
        channel.close()
        raise


def _introduced(channel: Channel, where: str, key: bytes) -> Channel:
    hello = Hello(PROTOCOL, program_version(), new_nonce())
    channel.send(hello)
    challenge = _expect(channel, Challenge, where)
    if (challenge.protocol, challenge.program) != (hello.protocol, hello.program):
        raise Damaged("a challenge of another version")
    session = _session(key, hello, challenge)
    channel.send(Proof(session.derived(_DIALS)))
    answer, _ = channel.receive()
    is_other = isinstance(answer, Refused) and answer.reason == _DIFFERENT
    if is_other or (isinstance(answer, Proof) and not session.is_proof(answer.proof, _LISTENS)):
        raise ClusterRefused(
            f"the coordinator at {where} has another secret",
            hint=f"give both sides the same {FILE_VARIABLE} or {VARIABLE}",
        )
    _checked(answer, Proof, where)
    channel.open(session.derived(_TO_LISTENER), session.derived(_TO_DIALER))
    channel.set_timeout(None)
    return channel


def _session(key: bytes, hello: Hello, challenge: Challenge) -> SessionKeys:
    """What follows from the secret and from all that both sides have said. Raises Damaged."""
    if any(len(message.nonce) != NONCE_BYTES for message in (hello, challenge)):
        raise Damaged("a nonce of another length")
    return SessionKeys(key, msgspec.msgpack.encode([hello, challenge]))


def _expect(channel: Channel, kind: type[_Kind], where: str = "the other side") -> _Kind:
    return _checked(channel.receive()[0], kind, where)


def _checked(message: Message, kind: type[_Kind], where: str) -> _Kind:
    if isinstance(message, Refused):
        raise ClusterRefused(f"{where} refuses", where=message.reason)
    if not isinstance(message, kind):
        raise Damaged(f"{type(message).__name__} instead of {kind.__name__}")
    return message


def _mismatch(hello: Hello, version: str) -> str | None:
    """Why the two versions cannot work together, in words for both sides."""
    if (hello.protocol, hello.program) == (PROTOCOL, version):
        return None
    return (
        f"the coordinator runs mrs {version} (protocol {PROTOCOL}) and the worker mrs "
        f"{hello.program} (protocol {hello.protocol}): install the same version on both"
    )


def bound_socket(address: _Address, if_taken: str, name: str) -> socket.socket:
    """A socket that listens there and nowhere else.

    Raises UsageError: `if_taken` is what helps if another program has the port, and `name` what
    names the address.
    """
    host, port = address
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(address, family=family, backlog=64)
    except (OSError, OverflowError, UnicodeError) as error:
        in_use = getattr(error, "errno", None) == errno.EADDRINUSE
        hint = f"another program uses the port: {if_taken}"
        said = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"cannot listen on {host}, port {port}",
            where=said.partition(" (while ")[0],  # create_server adds the address
            hint=hint if in_use else f"give {name} an address of this machine",
        ) from error


#: Maximum number of connections that wait for the coordinator; each one is an open file.
MOST_WAITING = 256
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
            if (spoken := self._spoken()) is not None:
                return spoken
            rest_s = until_s - time.monotonic()
            wait_s = min(rest_s, _POLL_S) if self._silent else rest_s
            try:
                channel = self._arrived.get(timeout=None if wait_s == math.inf else max(wait_s, 0))
            except Empty:
                if rest_s <= 0:
                    raise
                continue
            if channel is None:
                for silent in self._silent:
                    silent.close()
                return None
            if len(self._silent) == MOST_WAITING:
                self._drop(next(iter(self._silent)))
            channel.set_timeout(0.0)
            self._silent[channel] = time.monotonic() + SILENCE_S

    def _spoken(self) -> tuple[Channel, Message] | None:
        """A peer whose message is here. Drops those that left or were silent for too long."""
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

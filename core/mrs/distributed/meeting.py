"""How two processes meet: one listens, one dials, both prove that they know the secret."""

from __future__ import annotations

import errno
import os
import queue
import socket
import threading
from contextlib import suppress
from typing import TypeVar

import msgspec

from mrs.distributed.channel import Channel, Damaged
from mrs.distributed.failures import ClusterRefused
from mrs.distributed.greetings import GREETING_S, Greeting, Greetings
from mrs.distributed.messages import PROTOCOL, Challenge, Hello, Message, Proof, Refused
from mrs.distributed.secret import (
    FILE_VARIABLE,
    NONCE_BYTES,
    VARIABLE,
    Session,
    new_nonce,
    stretched,
)
from mrs.distributed.threads import start_thread
from mrs.errors import UsageError

#: So many refusals wait for somebody who reads them; strangers cannot make more.
_MOST_REFUSED = 64
#: What proofs and keys are for.
_DIALS, _LISTENS = b"who dials", b"who listens"
_TO_DIALER, _TO_LISTENER = b"frames to who dials", b"frames to who listens"
_DIFFERENT = "the secrets differ"
_Address = tuple[str, int]
_Kind = TypeVar("_Kind", bound=Message)


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
    """Somebody accepts connections and says nothing: another program, or a head that is stopped."""


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
        self.arrived: queue.SimpleQueue[Channel | None] = queue.SimpleQueue()
        self.refused: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._is_closed = threading.Event()
        self._greetings = Greetings(self._socket, self._greet, self._arrive, self._refuse)
        start_thread("listen", self._serve, lambda error: self.close())

    def close(self) -> None:
        self._is_closed.set()
        self._socket.close()
        self._greetings.wake()

    def _serve(self) -> None:
        try:
            with self._greetings:
                while not self._is_closed.is_set():
                    self._greetings.step()
        finally:
            self.arrived.put(None)

    def _greet(self, channel: Channel) -> Greeting:
        return welcome(channel, self._key)

    def _arrive(self, channel: Channel) -> None:
        if self._is_closed.is_set():  # nobody takes it any more
            channel.close()
        self.arrived.put(channel)

    def _refuse(self, error: Exception) -> None:
        if isinstance(error, ClusterRefused) and self.refused.qsize() < _MOST_REFUSED:
            self.refused.put(str(error))


def welcome(channel: Channel, key: bytes) -> Greeting:
    """The listener's part of the greeting; yields where it needs the next message.

    `key` is the stretched secret. Nothing that depends on it is sent before the other side has
    proven that it has the same.

    Raises ClusterRefused, OSError, EOFError, Damaged.
    """
    yield
    hello = _expect(channel, Hello)
    own = program_version()
    if (reason := _mismatch(hello.protocol, hello.program, own)) is not None:
        channel.send(Refused(reason))
        raise ClusterRefused(f"{channel.peer_host} was refused", where=reason)
    challenge = Challenge(PROTOCOL, own, new_nonce())
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
        raise ClusterRefused(f"{where} is no head of this program") from error
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
            f"the head at {where} has another secret",
            hint=f"give both sides the same {FILE_VARIABLE} or {VARIABLE}",
        )
    _checked(answer, Proof, where)
    channel.open(session.derived(_TO_LISTENER), session.derived(_TO_DIALER))
    channel.set_timeout(None)
    return channel


def _session(key: bytes, hello: Hello, challenge: Challenge) -> Session:
    """What follows from the secret and from all that both sides have said. Raises Damaged."""
    if any(len(each.nonce) != NONCE_BYTES for each in (hello, challenge)):
        raise Damaged("a nonce of another length")
    return Session(key, msgspec.msgpack.encode([hello, challenge]))


def _expect(channel: Channel, kind: type[_Kind], where: str = "the other side") -> _Kind:
    return _checked(channel.receive()[0], kind, where)


def _checked(message: Message, kind: type[_Kind], where: str) -> _Kind:
    if isinstance(message, Refused):
        raise ClusterRefused(f"{where} refuses", where=message.reason)
    if not isinstance(message, kind):
        raise Damaged(f"{type(message).__name__} instead of {kind.__name__}")
    return message


def _mismatch(protocol: int, program: str, own: str) -> str | None:
    """Why two versions cannot work together, in words for both sides."""
    if (protocol, program) == (PROTOCOL, own):
        return None
    return (
        f"the head runs mrs {own} (protocol {PROTOCOL}) and the worker mrs {program} "
        f"(protocol {protocol}): install the same version on both"
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
        raise UsageError(
            f"cannot listen on {host}, port {port}",
            where=os.strerror(errno.EADDRINUSE)
            if in_use
            else getattr(error, "strerror", None) or str(error),
            hint=hint if in_use else f"give {name} an address of this machine",
        ) from error

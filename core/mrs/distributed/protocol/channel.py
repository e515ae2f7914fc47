"""A connection of two processes: messages with a seal, and raw bytes that follow them.

A frame is the lengths of the message and of the bytes, the message, the bytes, and a seal: the
HMAC-SHA256 of all of it, of the direction and of the frame's number. Before the secret is proven,
seals are made with an empty key.
"""

from __future__ import annotations

import hmac
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import TypeVar

import msgspec

from mrs.distributed.protocol.messages import Any, Message
from mrs.errors import ExitCode, MrsError

_LENGTHS = struct.Struct("<IQ")
_SEAL_BYTES = 32
#: The longest message of a channel that does not `expect` longer ones.
GREETING_BYTES = 4096
#: What a frame announces takes memory only as it arrives: this much ahead, or twice what is there.
_AHEAD_BYTES = 1 << 20
_Kind = TypeVar("_Kind", bound=Message)


class Damaged(MrsError):
    """A frame that no peer of this program would send."""

    exit_code = ExitCode.PEER_FAILED


class _Tag(msgspec.Struct):
    """What a message says that it is."""

    type: str


class Channel:
    """Sends from any thread, receives in one. Not opened before the keys are known."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._decoder = msgspec.msgpack.Decoder(Any)
        self._encoder = msgspec.msgpack.Encoder()
        self._lock = threading.Lock()
        self._keys = b"", b""
        #: Bytes of the next frame that are here before `receive` is called.
        self._begun = bytearray()
        self._sent = self._received = 0
        self.peer_host = str(connection.getpeername()[0])
        #: Who the peer is, for errors; empty if whoever receives says it.
        self.name = ""
        self.own_host = str(connection.getsockname()[0])
        self._most_message_bytes = GREETING_BYTES
        self._limit_s: float | None = None
        #: The most raw bytes after a message.
        self.most_data_bytes = 0
        #: The bytes of the message that was received last.
        self.message_bytes = 0
        _set_options(connection)

    def open(self, send_key: bytes, receive_key: bytes) -> None:
        """Seal all later frames with these keys."""
        self._keys = send_key, receive_key

    def expect(self, kinds: object, most_message_bytes: int) -> None:
        """Receive only these kinds of messages (a union), of `most_message_bytes` at most."""
        self._decoder = msgspec.msgpack.Decoder(kinds)
        self._most_message_bytes = most_message_bytes

    def set_timeout(self, seconds: float | None) -> None:
        """How long a frame may take that is sent, and each piece of one that is received."""
        self._limit_s = None
        self._socket.settimeout(seconds)

    def set_limit(self, seconds: float) -> None:
        """How long a whole frame or signal may take, from the call on that sends or awaits it.

        For a channel of one thread.
        """
        self._limit_s = seconds
        self._socket.settimeout(seconds)

    def send(self, message: Message, data: memoryview | None = None) -> None:
        """Raises OSError."""
        body = self._encoder.encode(message)
        head = _LENGTHS.pack(len(body), 0 if data is None else data.nbytes) + body
        with self._lock:
            seal = self._seal(self._keys[0], self._sent, head, data)
            self._sent += 1
            if data is None:
                self._socket.sendall(head + seal)
            else:
                self._socket.sendall(head)
                self._socket.sendall(data)
                self._socket.sendall(seal)

    def is_ready(self) -> bool:
        """Read without waiting; whether the next frame is there, so that `receive` need not wait.

        For a timeout of 0. Raises EOFError, OSError and Damaged.
        """
        try:
            while missing := self._missing():
                self._take(missing)
        except BlockingIOError:
            return False
        return True

    def _take(self, most_bytes: int) -> None:
        data = self._socket.recv(min(most_bytes, _AHEAD_BYTES))
        if not data:
            raise EOFError
        self._begun += data

    def _missing(self) -> int:
        """How many bytes of the next frame are known to be missing. Raises Damaged."""
        if len(self._begun) < _LENGTHS.size:
            return _LENGTHS.size - len(self._begun)
        lengths = self._lengths(self._begun[: _LENGTHS.size])
        return _LENGTHS.size + sum(lengths) + _SEAL_BYTES - len(self._begun)

    def _lengths(self, head: bytearray) -> tuple[int, int]:
        """The bytes of a frame's message and of its data. Raises Damaged."""
        message_bytes, data_bytes = _LENGTHS.unpack(head)
        if message_bytes > self._most_message_bytes or data_bytes > self.most_data_bytes:
            raise Damaged(f"a frame of {message_bytes} and {data_bytes} bytes is too long")
        return message_bytes, data_bytes

    def receive(self) -> tuple[Message, bytearray]:
        """The next message and its bytes.

        Raises EOFError at the end, OSError (TimeoutError) and Damaged.
        """
        until_s = None if self._limit_s is None else time.monotonic() + self._limit_s
        try:
            return self._received_frame(until_s)
        except Damaged as error:
            raise self.damaged(error.what, error.where) from error
        finally:
            if until_s is not None:
                with suppress(OSError):  # it may be closed
                    self._socket.settimeout(self._limit_s)

    def take(self, kind: type[_Kind]) -> _Kind:
        """The next message, which must be of that kind; bytes after it are dropped.

        Raises as `receive`.
        """
        message, _ = self.receive()
        if not isinstance(message, kind):
            raise self.damaged(f"{type(message).__name__} instead of {kind.__name__}")
        return message

    def damaged(self, what: str, where: str = "") -> Damaged:
        """The error that names the peer."""
        return Damaged(f"{self.name}: {what}" if self.name else what, where=where)

    def _received_frame(self, until_s: float | None) -> tuple[Message, bytearray]:
        head = self._read(_LENGTHS.size, until_s)
        message_bytes, data_bytes = self._lengths(head)
        body, data = self._read(message_bytes, until_s), self._read(data_bytes, until_s)
        seal = self._seal(self._keys[1], self._received, bytes(head + body), memoryview(data))
        self._received += 1
        if not hmac.compare_digest(bytes(self._read(_SEAL_BYTES, until_s)), seal):
            raise Damaged("a frame has a wrong seal")
        self.message_bytes = message_bytes
        try:
            return self._decoder.decode(body), data
        except (ValueError, RecursionError, MemoryError) as error:  # of msgspec, and of its strings
            raise Damaged(f"{_kind_of(body)} cannot be read", where=str(error)) from error

    def signal(self) -> None:
        """Send a byte without frame and seal, to a peer that sends no frames."""
        self._socket.send(b"\0")

    def await_signal(self, busy_s: float = 0.0) -> None:
        """Wait for a `signal`, so long without sleeping: to be woken up takes some 30 µs.

        Raises EOFError at the end, and OSError (TimeoutError).
        """
        until_s = time.perf_counter() + busy_s
        while busy_s and time.perf_counter() < until_s:
            with suppress(BlockingIOError):
                return self._take_signal(socket.MSG_DONTWAIT)
        try:
            self._take_signal()
        except BlockingIOError:  # by `limit_signals`
            text = f"no signal of {self.name or self.peer_host} within the limit of a step"
            raise TimeoutError(text) from None

    def limit_signals(self, seconds: float) -> None:
        """How long one may wait for a signal, or to send one; nothing else is sent any more.

        The system watches the time: a timeout of Python's would poll before each signal.
        """
        self.set_timeout(None)
        value = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, value)

    def _take_signal(self, flags: int = 0) -> None:
        if not self._socket.recv(1, flags):
            raise EOFError

    def close(self) -> None:
        """End the connection; a thread that waits for it is woken up."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _seal(self, key: bytes, number: int, head: bytes, data: memoryview | None) -> bytes:
        seal = hmac.new(key, number.to_bytes(8, "little"), "sha256")
        seal.update(head)
        if data is not None:
            seal.update(data)
        return seal.digest()

    def _read(self, count: int, until_s: float | None) -> bytearray:
        """`count` bytes, which take memory only as they arrive. Raises EOFError and OSError."""
        data, self._begun = self._begun[:count], self._begun[count:]
        filled = len(data)
        while filled < count:
            if filled == len(data):
                data += bytes(min(count - filled, max(filled, _AHEAD_BYTES)))
            if until_s is not None:
                self._wait_no_longer(until_s)
            with memoryview(data) as view:
                try:
                    done = self._socket.recv_into(view[filled:])
                except TimeoutError as error:
                    raise self._no_answer() from error
            if not done:
                raise EOFError
            filled += done
        return data

    def _wait_no_longer(self, until_s: float) -> None:
        rest_s = until_s - time.monotonic()
        if rest_s <= 0:
            raise self._no_answer()
        self._socket.settimeout(rest_s)

    def _no_answer(self) -> TimeoutError:
        limit = "in time" if self._limit_s is None else f"within {self._limit_s:g} s"
        return TimeoutError(f"no answer of {self.name or self.peer_host} {limit}")


def _kind_of(body: bytearray) -> str:
    """The kind of a message that cannot be read, if it says one."""
    with suppress(ValueError, RecursionError, MemoryError):
        name = msgspec.msgpack.decode(body, type=_Tag).type
        if name.isidentifier() and len(name) < 40:
            return f"a {name}"
    return "a message"


def _set_options(connection: socket.socket) -> None:
    """Small messages at once; a silent link ends a connection on both sides, used or not."""
    options = {
        "TCP_NODELAY": 1,
        "TCP_KEEPIDLE": 2,
        "TCP_KEEPINTVL": 1,
        "TCP_KEEPCNT": 4,
        "TCP_USER_TIMEOUT": 7000,
    }
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in options.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

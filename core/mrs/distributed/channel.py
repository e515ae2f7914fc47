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

import msgspec

from mrs.distributed.messages import Any, Message
from mrs.errors import MrsError

_LENGTHS = struct.Struct("<IQ")
_SEAL_BYTES = 32
#: The longest message before the secret is proven, and afterwards.
GREETING_BYTES, MESSAGE_BYTES = 4096, 64 << 20


class Damaged(MrsError):
    """A frame that no peer of this program would send."""


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
        self.own_host = str(connection.getsockname()[0])
        self._most_message_bytes = GREETING_BYTES
        #: The most raw bytes after a message.
        self.most_data_bytes = 0
        _set_options(connection)

    def open(self, send_key: bytes, receive_key: bytes) -> None:
        """Seal all further frames with these keys."""
        self._keys = send_key, receive_key
        self._most_message_bytes = MESSAGE_BYTES

    def set_timeout(self, seconds: float | None) -> None:
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

    def receive_within(self, seconds: float) -> tuple[Message, bytearray]:
        """As `receive`, and the whole frame is there within this time. There is no limit later."""
        until_s = time.monotonic() + seconds
        while missing := self._missing():
            rest_s = until_s - time.monotonic()
            if rest_s <= 0:
                raise TimeoutError
            self.set_timeout(rest_s)
            self._take(missing)
        self.set_timeout(None)
        return self.receive()

    def _take(self, most_bytes: int) -> None:
        data = self._socket.recv(most_bytes)
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
        head = self._read(_LENGTHS.size)
        message_bytes, data_bytes = self._lengths(head)
        body, data = self._read(message_bytes), self._read(data_bytes)
        seal = self._seal(self._keys[1], self._received, bytes(head + body), memoryview(data))
        self._received += 1
        if not hmac.compare_digest(bytes(self._read(_SEAL_BYTES)), seal):
            raise Damaged("a frame has a wrong seal")
        try:
            return self._decoder.decode(body), data
        except msgspec.MsgspecError as error:
            raise Damaged("a message cannot be read", where=str(error)) from error

    def signal(self) -> None:
        """Send a byte without frame and seal, to a peer of which no frames are expected."""
        self._socket.send(b"\0")

    def await_signal(self, busy_s: float = 0.0) -> None:
        """Wait for a `signal`, so long without sleeping: to be woken up takes some 30 µs.

        Raises EOFError at the end, and OSError.
        """
        until_s = time.perf_counter() + busy_s
        while busy_s and time.perf_counter() < until_s:
            with suppress(BlockingIOError):
                return self._take_signal(socket.MSG_DONTWAIT)
        self._take_signal()

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

    def _read(self, count: int) -> bytearray:
        data = bytearray(count)
        begun, self._begun = self._begun[:count], self._begun[count:]
        data[: len(begun)] = begun
        rest = memoryview(data)[len(begun) :]
        while rest:
            done = self._socket.recv_into(rest)
            if not done:
                raise EOFError
            rest = rest[done:]
        return data


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

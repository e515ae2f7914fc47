"""The memory of requests, from the first byte of a body until the request is answered."""

from __future__ import annotations

import asyncio
import time

import numpy as np

from mrs.process.turns import Client, Shares
from mrs.server.http.errors import ApiError

#: A body may be read for so long before it may have to leave its room to others.
_GRACE_S = 2.0
#: Bytes of a decoded value, of each sign that it has one: measured 40 to 89, and as much again for
#: what is converted. A comma may part numbers, a string has two quotes; where a large body is cut,
#: its commas are listed.
_SIGNS = {b",": 64, b'"': 48, b"{": 96, b"[": 96, b":": 96}
#: First bytes of UTF-8 from which on a character is not ASCII, and has four bytes in Python.
_NOT_ASCII, _WIDE = 0x80, 0xF0
_PIECE_BYTES = 2**20


class Bodies:
    """At most `most_bytes` of all bodies and of what is made of them; None is no limit.

    Each sender leaves some to others, as `Shares` says. A body that finds no room takes the place
    of slow ones, so that these cannot keep everybody else out: first of those senders that have
    most, and never of one that has less than its own. With none such, it gets status 503. Belongs
    to the event loop; but any thread may change `most_bytes`.
    """

    def __init__(self, most_bytes: int | None = None) -> None:
        self.most_bytes = most_bytes
        self.shares = Shares()
        self._held: dict[HeldBody, None] = {}

    @property
    def used_bytes(self) -> int:
        return self.shares.total

    def begin(self, sender: Client = ("", "")) -> HeldBody:
        """A new body, which the current task reads for an API key and an address."""
        body = HeldBody(self, sender)
        self._held[body] = None
        return body

    def end(self, body: HeldBody) -> None:
        self._held.pop(body, None)

    def make_room(self, body: HeldBody, more_bytes: int) -> None:
        """Raise ApiError if `body` cannot have `more_bytes`."""
        most_bytes, sender = self.most_bytes, body.sender
        if most_bytes is None or self.shares.have_room(sender, most_bytes, more_bytes):
            return
        if not Shares().have_room(sender, most_bytes, body.size_bytes + more_bytes):
            text = "reading the body takes more than one client's share of the memory"
            raise ends_connection(413, f"{text}: send less at once")
        slow = self._slower(body)
        while not self.shares.have_room(sender, most_bytes, more_bytes):
            if not slow:
                raise no_memory_now()
            slow.pop(0).drop()

    def _slower(self, body: HeldBody) -> list[HeldBody]:
        """The slow ones that leave their room to `body`, the first one first."""
        has = self.shares.of
        slow = (each for each in self._held if each is not body and each.is_slow)
        larger = (each for each in slow if has(each.sender) >= has(body.sender))
        return sorted(larger, key=lambda each: -has(each.sender))


class HeldBody:
    """The memory of one request; `drop` ends its reading."""

    def __init__(self, bodies: Bodies, sender: Client) -> None:
        self.sender = sender
        self.size_bytes = 0
        self.is_dropped = False
        self._bodies = bodies
        self._task = asyncio.current_task()
        self._since_s: float | None = time.monotonic()

    @property
    def is_slow(self) -> bool:
        """Whether it is still being read, after some time."""
        return self._since_s is not None and time.monotonic() - self._since_s > _GRACE_S

    def resize(self, size_bytes: int) -> None:
        """Make room for `size_bytes`. Raises ApiError if there is none."""
        if size_bytes > self.size_bytes:
            self._bodies.make_room(self, size_bytes - self.size_bytes)
        self._bodies.shares.add(self.sender, size_bytes - self.size_bytes)
        self.size_bytes = size_bytes

    def shrink(self, size_bytes: int) -> None:
        """Give back all but `size_bytes`; nothing if it has less."""
        self.resize(min(size_bytes, self.size_bytes))

    def is_read(self) -> None:
        self._since_s = None

    def drop(self) -> None:
        self.is_dropped = True
        self.end()
        if self._task is not None:
            self._task.cancel()

    def end(self) -> None:
        self._bodies.end(self)
        self._since_s = None
        self.resize(0)


def decoded_bytes(body: bytes | bytearray) -> int:
    """The most that the value of a body of JSON takes, and the request that is made of it.

    Each call below looks at a piece: other threads wait until it returns.
    """
    width, signs = 1, 0
    for start in range(0, len(body), _PIECE_BYTES):
        # The next byte too, for an escape that begins here.
        piece = body[start : start + _PIECE_BYTES + 1]
        values = np.frombuffer(piece, np.uint8)[:_PIECE_BYTES]
        largest = int(values.max())
        # One wide character makes all others of its text as wide; and its UTF-8 may be kept.
        if b"\\u" in piece:
            width = max(width, 7)  # what is read of escapes is collected first
        elif largest >= _WIDE:
            width = max(width, 5)
        elif largest >= _NOT_ASCII:
            width = max(width, 3)
        for sign, size in _SIGNS.items():
            signs += size * int(np.count_nonzero(values == ord(sign)))
    return width * len(body) + signs


def ends_connection(status: int, message: str) -> ApiError:
    """An error before the whole body was read or decoded: what is left of it is not."""
    headers = {"connection": "close", "x-should-retry": "false"}
    return ApiError(status, message, code="body_error", headers=headers)


def no_memory_now() -> ApiError:
    """The error of a request that would have had room at another time."""
    message = "the requests that run take all memory that the server has for them: try again later"
    headers = {"retry-after": "1", "connection": "close"}
    return ApiError(503, message, code="no_memory_now", headers=headers)

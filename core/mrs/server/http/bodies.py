"""The memory of requests, from the first byte of a body until the request is answered."""

from __future__ import annotations

import asyncio
import re
import time

from mrs.server.http.errors import ApiError

#: A body may be read for so long before it may have to leave its room to others.
_GRACE_S = 2.0
#: Bytes of a decoded value, of each sign that it has one: measured 40 to 89, and as much again for
#: what is converted. A comma may part numbers, a string has two quotes.
_COMMA_BYTES, _QUOTE_BYTES, _OTHER_BYTES = 48, 48, 96
_ESCAPED = re.compile(rb"\\u")
_WIDE = re.compile(rb"[\xf0-\xff]")


class Bodies:
    """At most `most_bytes` of all bodies and of what is made of them; None is no limit.

    A body that finds no room takes the place of the one that has been read for longest, so that
    slow clients cannot keep everybody else out; with none such, it gets status 503. Belongs to the
    event loop; but any thread may change `most_bytes`.
    """

    def __init__(self, most_bytes: int | None = None) -> None:
        self.most_bytes = most_bytes
        self.used_bytes = 0
        self._held: dict[HeldBody, None] = {}

    def begin(self) -> HeldBody:
        """A new body, which the current task reads."""
        body = HeldBody(self)
        self._held[body] = None
        return body

    def end(self, body: HeldBody) -> None:
        self._held.pop(body, None)

    def make_room(self, body: HeldBody, more_bytes: int) -> None:
        """Raise ApiError if `body` cannot have `more_bytes`."""
        if self.most_bytes is None:
            return
        if body.size_bytes + more_bytes > self.most_bytes:
            text = f"reading the body takes more than {self.most_bytes} bytes of memory"
            raise ends_connection(413, f"{text}: send less at once")
        slow = [each for each in self._held if each is not body and each.is_slow]
        while self.used_bytes + more_bytes > self.most_bytes:
            if not slow:
                raise no_memory_now()
            slow.pop(0).drop()


class HeldBody:
    """The memory of one request; `drop` ends its reading."""

    def __init__(self, bodies: Bodies) -> None:
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
        """Raises ApiError if there is no room for so much."""
        if size_bytes > self.size_bytes:
            self._bodies.make_room(self, size_bytes - self.size_bytes)
        self._bodies.used_bytes += size_bytes - self.size_bytes
        self.size_bytes = size_bytes

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
    """The most that the value of a body of JSON takes, and the request that is made of it."""
    width = 1
    # One wide character makes all others of its text as wide; and its UTF-8 may be kept.
    if _ESCAPED.search(body):
        width = 7  # what is read of escapes is collected first
    elif not body.isascii():
        width = 5 if _WIDE.search(body) else 3
    others = sum(map(body.count, (b"{", b"[", b":")))
    parts = _COMMA_BYTES * body.count(b",") + _QUOTE_BYTES * body.count(b'"')
    return width * len(body) + parts + _OTHER_BYTES * others


def ends_connection(status: int, message: str) -> ApiError:
    """An error before the whole body was read or decoded: what is left of it is not."""
    headers = {"connection": "close", "x-should-retry": "false"}
    return ApiError(status, message, code="body_error", headers=headers)


def no_memory_now() -> ApiError:
    """The error of a request that would have had room at another time."""
    message = "the requests that run take all memory that the server has for them: try again later"
    headers = {"retry-after": "1", "connection": "close"}
    return ApiError(503, message, code="no_memory_now", headers=headers)

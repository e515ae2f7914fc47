"""Memory that pieces of work share: each takes its bytes before it begins."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from mrs.errors import NoRoom


class MemoryRoom:
    """At most `most_bytes` taken at the same time, by all threads; None is no limit.

    Work that finds no room waits for others to end. `most_bytes` may change at any time.
    """

    def __init__(self, most_bytes: int | None = None) -> None:
        self.most_bytes = most_bytes
        self.used_bytes = 0
        self._changed = threading.Condition()

    def fits(self, size_bytes: int) -> bool:
        """Whether `size_bytes` could be taken if nothing else were."""
        return self.most_bytes is None or size_bytes <= self.most_bytes

    def take(self, size_bytes: int, what: str, wait_s: float = 0.0) -> None:
        """Take bytes for `what`. Raises NoRoom if there are none within `wait_s` seconds."""
        deadline_s = time.monotonic() + wait_s
        with self._changed:
            while not self._has(size_bytes):
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not self.fits(size_bytes):
                    raise NoRoom(what)
                self._changed.wait(left_s)
            self.used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        with self._changed:
            self.used_bytes -= size_bytes
            self._changed.notify_all()

    @contextmanager
    def taken(self, size_bytes: int, what: str, wait_s: float = 0.0) -> Iterator[None]:
        """Bytes are taken as `take` does, and given back at the end."""
        self.take(size_bytes, what, wait_s)
        try:
            yield
        finally:
            self.give_back(size_bytes)

    def give_back_with(self, owner: object, size_bytes: int) -> None:
        """Give taken bytes back as soon as nobody refers to `owner` any more."""
        weakref.finalize(owner, self.give_back, size_bytes).atexit = False

    def _has(self, size_bytes: int) -> bool:
        return self.most_bytes is None or self.used_bytes + size_bytes <= self.most_bytes

"""The memory of what clients have not read of their replies, of all requests together."""

from __future__ import annotations

from typing import Protocol


class Unread(Protocol):
    """Replies to one request."""

    @property
    def unread_bytes(self) -> int: ...

    def expect_reader(self) -> None:
        """End the replies if nobody reads them soon."""


class UnreadBytes:
    """Keeps all replies together below `most_bytes`: beyond it, those with most need a reader.

    Belongs to the event loop; but any thread may change `most_bytes`; None is no limit.
    """

    def __init__(self, most_bytes: int | None = None) -> None:
        self.most_bytes = most_bytes
        self.used_bytes = 0
        self._open: set[Unread] = set()

    @property
    def is_full(self) -> bool:
        return self.most_bytes is not None and self.used_bytes > self.most_bytes

    def begin(self, replies: Unread) -> None:
        self._open.add(replies)

    def end(self, replies: Unread) -> None:
        self._open.discard(replies)

    def add(self, size_bytes: int) -> None:
        """Count bytes that were made; negative ones were read."""
        self.used_bytes += size_bytes
        if size_bytes > 0 and self.is_full and self._open:
            max(self._open, key=lambda each: each.unread_bytes).expect_reader()

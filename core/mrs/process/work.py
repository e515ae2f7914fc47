"""What a thread does for a client that may leave before it is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType

from mrs.errors import MrsError
from mrs.process.turns import Client, Turns


class Abandoned(MrsError):
    """Nobody waits for the result any more."""

    def __init__(self) -> None:
        super().__init__("the work was abandoned, because its client left or its time was over")


class Work:
    """The work of one request; any thread may abandon it, which it notices between its pieces."""

    def __init__(self, client: Client = ()) -> None:
        self.client = client
        self._lock = threading.Lock()
        self._is_abandoned = False
        self._when_abandoned: Callable[[], None] | None = None

    def abandon(self) -> None:
        with self._lock:
            self._is_abandoned = True
            if self._when_abandoned is not None:
                self._when_abandoned()

    def check(self) -> None:
        """Raise Abandoned if the work is not wanted any more: called before each piece of it."""
        if self._is_abandoned:
            raise Abandoned

    @contextmanager
    def telling(self, when_abandoned: Callable[[], None]) -> Iterator[None]:
        """Call `when_abandoned`, which must not wait, if that has happened or does in the block."""
        with self._lock:
            self._when_abandoned = when_abandoned
            if self._is_abandoned:
                when_abandoned()
        try:
            yield
        finally:
            with self._lock:
                self._when_abandoned = None


_current: ContextVar[Work] = ContextVar("work")


def current_work() -> Work:
    """The work of this thread; outside of `doing`, one that nobody abandons."""
    return _current.get(None) or Work()


@contextmanager
def doing(work: Work) -> Iterator[None]:
    token = _current.set(work)
    try:
        yield
    finally:
        _current.reset(token)


class TurnLock:
    """A lock that waiting threads get in the turns of the clients for whom they work.

    Raises Abandoned where a thread waits for it in vain.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._turns = Turns()
        self._waiting: list[Work] = []
        self._is_held = False

    def __enter__(self) -> None:
        work = current_work()
        work.check()
        with work.telling(self._wake), self._changed:
            self._waiting.append(work)
            try:
                while self._is_held or self._turns.in_order(self._waiting)[0] is not work:
                    work.check()
                    self._changed.wait()
                self._is_held = True
                self._turns.take(work.client)
            finally:
                self._waiting.remove(work)
                self._changed.notify_all()  # another one may be the next now

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_held = False
            self._changed.notify_all()

"""The threads that read requests, which clients have in turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeVar

from mrs.engine.sequence import QueueFull
from mrs.process.turns import Client, Turns, crowding
from mrs.process.work import Work, doing
from mrs.server.background import step_back

Result = TypeVar("Result")

#: A thread begins a request's next piece only for so long; then another request has its turn.
_TURN_S = 0.05
#: Processor time after which work is long. Until then it takes some from replies.
_SHORT_S = 0.005


class WorkQueue:
    """Does the work of requests in a few threads, piece by piece.

    The threads go round the clients that wait. An address has all but one of them at most, so that
    the last is free for others. Work that is long, or turns out to be, is done in threads that
    stand back, so that what is short is soon done beside replies that take all processors. At most
    `most_waiting` requests wait: for one more, the last of whoever has most leaves.
    """

    def __init__(self, threads: int, most_waiting: int) -> None:
        self._threads = threads
        self._most_waiting = most_waiting
        self._short = ThreadPoolExecutor(threads, "mrs-request")
        self._long = ThreadPoolExecutor(threads, "mrs-request-long", step_back)
        self._turns = Turns()
        self._waiting: list[_Job[Any]] = []
        self._running: list[_Job[Any]] = []

    async def do(
        self,
        client: Client,
        pieces: Iterable[Result],
        count: int | None = None,
        *,
        is_long: bool = False,
    ) -> list[Result]:
        """The results of `pieces`, each of which may block. Raises QueueFull.

        If it is known how many there are, `count`, no thread is asked for another one.
        Once this is cancelled no piece begins any more, and the one that is being done is
        abandoned.
        """
        job = _Job(client, pieces, count, is_long)
        if len(self._waiting) >= self._most_waiting:
            self._make_room(client)
        self._waiting.append(job)
        self._start()
        try:
            return await job.result
        finally:
            job.work.abandon()
            if job in self._waiting:
                self._waiting.remove(job)

    def close(self) -> None:
        """End without waiting for what runs."""
        for pool in (self._short, self._long):
            pool.shutdown(wait=False, cancel_futures=True)

    def _make_room(self, client: Client) -> None:
        full = QueueFull(self._most_waiting)
        leaving = crowding((each for each in self._waiting if not each.has_begun), client)
        if leaving is None:
            raise full
        self._waiting.remove(leaving)
        leaving.result.set_exception(full)

    def _start(self) -> None:
        """Give the free threads to those whose turn it is."""
        while len(self._running) < self._threads and (job := self._next()) is not None:
            self._waiting.remove(job)
            self._running.append(job)
            self._turns.take(job.client)
            pool = self._long if job.is_long else self._short
            turn = asyncio.get_running_loop().run_in_executor(pool, job.go_on)
            turn.add_done_callback(partial(self._end_turn, job))

    def _next(self) -> _Job[Any] | None:
        def has_room(job: _Job[Any]) -> bool:
            same = [each for each in self._running if each.client[:-1] == job.client[:-1]]
            return len(same) < max(self._threads - 1, 1)

        return next(filter(has_room, self._turns.in_order(self._waiting)), None)

    def _end_turn(self, job: _Job[Any], turn: asyncio.Future[bool]) -> None:
        self._running.remove(job)
        if job.settle(turn):
            self._waiting.append(job)
        self._start()


class _Job(Generic[Result]):
    """The work of one request."""

    def __init__(
        self, client: Client, pieces: Iterable[Result], count: int | None, is_long: bool
    ) -> None:
        self.client = client
        self.work = Work(client)
        self.result: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
        self.is_long, self.has_begun = is_long, False
        self._pieces, self._count = iter(pieces), count
        self._found: list[Result] = []

    def go_on(self) -> bool:
        """Do some of the pieces, in a thread; whether there are more."""
        self.has_begun = True
        end_s, long_s = time.monotonic() + _TURN_S, time.thread_time() + _SHORT_S
        with doing(self.work):
            for piece in self._pieces:
                self._found.append(piece)
                self.work.check()
                if len(self._found) == self._count:
                    return False
                turns_long = not self.is_long and time.thread_time() >= long_s
                self.is_long |= turns_long
                if turns_long or time.monotonic() >= end_s:
                    return True
        return False

    def settle(self, turn: asyncio.Future[bool]) -> bool:
        """Set the result after the last turn, on the event loop; whether there are more turns."""
        error = turn.exception()
        if self.result.done():  # nobody waits for it
            return False
        if error is not None:
            self.result.set_exception(error)
        elif not turn.result():
            self.result.set_result(self._found)
        return not self.result.done()

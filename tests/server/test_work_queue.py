"""The threads that read requests: whose turn it is, what is dropped, and how many may wait."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from mrs.engine.sequence import QueueFull
from mrs.process.turns import Client
from mrs.process.work import Abandoned, current_work
from mrs.server import work_queue
from mrs.server.work_queue import WorkQueue

BUSY, NEIGHBOUR = ("key", "busy"), ("key", "neighbour")


@pytest.fixture(autouse=True)
def each_piece_is_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue, "_TURN_S", 0.0)


def run(test: Callable[[WorkQueue], Coroutine[Any, Any, None]], **limits: int) -> None:
    async def limited() -> None:
        queue = WorkQueue(**{"threads": 1, "most_waiting": 200, **limits})
        try:
            await asyncio.wait_for(test(queue), 20)
        finally:
            queue.close()

    asyncio.run(limited())


class Pieces:
    """Notes what is done; the piece "wait" waits until `may_go_on`."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def of(self, *names: str) -> Iterator[str]:
        for name in names:
            current_work().check()
            self.done.append(name)
            if name == "wait":
                self.begun.set()
                assert self.may_go_on.wait(120)
            yield name

    async def until_begun(self) -> None:
        while not self.begun.is_set():
            await asyncio.sleep(0.001)


def start(queue: WorkQueue, client: Client, pieces: Iterator[str]) -> asyncio.Task[list[str]]:
    return asyncio.ensure_future(queue.do(client, pieces))


def test_a_neighbour_waits_for_one_piece_of_a_client_with_a_hundred_requests() -> None:
    async def test(queue: WorkQueue) -> None:
        pieces = Pieces()
        busy = [start(queue, (*BUSY, 0), pieces.of("wait", "rest"))]
        busy += [start(queue, (*BUSY, port), pieces.of("a", "b")) for port in range(1, 100)]
        await pieces.until_begun()
        mine = start(queue, (*NEIGHBOUR, 1), pieces.of("mine"))
        await asyncio.sleep(0)
        pieces.may_go_on.set()
        assert await mine == ["mine"]
        assert pieces.done[:2] == ["wait", "mine"]
        assert await asyncio.gather(*busy) == [["wait", "rest"], *[["a", "b"]] * 99]

    run(test)


def test_one_thread_is_left_to_other_addresses() -> None:
    async def test(queue: WorkQueue) -> None:
        pieces = Pieces()
        busy = [start(queue, (*BUSY, port), pieces.of("wait")) for port in range(10)]
        await pieces.until_begun()
        assert await start(queue, (*NEIGHBOUR, 1), pieces.of("mine")) == ["mine"]
        assert pieces.done.count("wait") <= 3
        pieces.may_go_on.set()
        await asyncio.gather(*busy)

    run(test, threads=4)


def test_nothing_is_done_for_clients_that_left() -> None:
    async def test(queue: WorkQueue) -> None:
        pieces = Pieces()
        first = start(queue, (*BUSY, 0), pieces.of("wait", "never"))
        others = [start(queue, (*BUSY, port), pieces.of("never")) for port in range(1, 100)]
        await pieces.until_begun()
        for each in (first, *others):
            each.cancel()
        await asyncio.gather(first, *others, return_exceptions=True)
        pieces.may_go_on.set()
        assert await start(queue, (*NEIGHBOUR, 1), pieces.of("mine")) == ["mine"]
        assert pieces.done == ["wait", "mine"]

    run(test)


def test_a_piece_that_is_abandoned_notices_it() -> None:
    async def test(queue: WorkQueue) -> None:
        begun, found = threading.Event(), asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()

        def piece() -> Iterator[None]:
            work = current_work()
            begun.set()
            try:
                for _ in range(10_000):
                    work.check()
                    time.sleep(0.001)
            except Abandoned as error:
                loop.call_soon_threadsafe(found.set_result, error)
                raise
            yield

        task = start(queue, (*BUSY, 0), piece())  # type: ignore[arg-type]
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        assert isinstance(await found, Abandoned)

    run(test)


def test_errors_of_pieces_are_those_of_the_request() -> None:
    async def test(queue: WorkQueue) -> None:
        with pytest.raises(ZeroDivisionError):
            await queue.do((*BUSY, 0), (1 // each for each in (1, 0)))

    run(test)


def test_a_full_queue_refuses_whoever_has_most_in_it() -> None:
    async def test(queue: WorkQueue) -> None:
        pieces = Pieces()
        tasks = [start(queue, (*BUSY, 0), pieces.of("wait"))]
        await pieces.until_begun()
        tasks += [start(queue, (*BUSY, port), pieces.of(str(port))) for port in range(1, 6)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await queue.do((*BUSY, 6), pieces.of("6"))
        mine = start(queue, (*NEIGHBOUR, 1), pieces.of("mine"))
        with pytest.raises(QueueFull):
            await tasks[-1]
        pieces.may_go_on.set()
        await asyncio.gather(mine, *tasks[:-1])
        assert pieces.done == ["wait", "mine", "1", "2", "3", "4"]

    run(test, most_waiting=5)


def note_threads(names: list[str], count: int) -> Iterator[str]:
    for number in range(count):
        names.append(threading.current_thread().name)
        yield str(number)
    names.append("more")


@pytest.mark.parametrize("is_long", [False, True])
def test_long_work_has_threads_of_its_own(is_long: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue, "_SHORT_S", 60.0)

    async def test(queue: WorkQueue) -> None:
        names: list[str] = []
        await queue.do(NEIGHBOUR, note_threads(names, 2), 2, is_long=is_long)
        assert ["long" in name for name in names] == [is_long] * 2

    run(test)


def test_work_that_turns_out_to_be_long_goes_on_as_long_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work_queue, "_TURN_S", 60.0)
    monkeypatch.setattr(work_queue, "_SHORT_S", 0.0)

    async def test(queue: WorkQueue) -> None:
        names: list[str] = []
        await queue.do(NEIGHBOUR, note_threads(names, 3), 3)
        assert ["long" in name for name in names] == [False, True, True]

    run(test)


def test_nobody_looks_for_more_pieces_than_there_are() -> None:
    async def test(queue: WorkQueue) -> None:
        names: list[str] = []
        assert await queue.do(NEIGHBOUR, note_threads(names, 1), 1) == ["0"]
        assert "more" not in names

    run(test)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
def test_only_long_work_stands_back() -> None:
    def niceness() -> Iterator[int]:
        yield os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    async def test(queue: WorkQueue) -> None:
        own = os.getpriority(os.PRIO_PROCESS, os.getpid())
        assert await queue.do(NEIGHBOUR, niceness(), 1) == [own]
        assert await queue.do(NEIGHBOUR, niceness(), 1, is_long=True) == [19]

    run(test)

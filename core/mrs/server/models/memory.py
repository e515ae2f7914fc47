"""Work on models outside of the event loop, and memory that goes back to the system."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from mrs.server.pauses import collect_all

Result = TypeVar("Result")


async def in_own_thread(work: Callable[[], Result]) -> Result:
    """The result of `work`, which may take minutes; a process that ends does not wait for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def end(set_result: Callable[[], None]) -> None:
        if not future.cancelled():
            set_result()

    def run() -> None:
        try:
            set_result = partial(future.set_result, work())
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            set_result = partial(future.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(end, set_result)

    threading.Thread(target=run, name="mrs-load", daemon=True).start()
    return await future


def return_memory() -> None:
    """Free what a closed model has left, and return the heap's free pages to the system."""
    from mrs.kernels.cpu.heap import trim_heap

    collect_all()
    trim_heap()

"""Threads that serve connections, which other threads close at any moment.

So each call of them may fail, and a thread that ends with an exception leaves those who wait for it
waiting: what it raises is passed on instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from mrs.errors import MrsError

OnError = Callable[[Exception], None]


def start_thread(name: str, work: Callable[[], None], on_error: OnError) -> None:
    """Run `work` in a daemon thread; `on_error` gets in that thread what it raises.

    Raises MrsError if the system has no thread left.
    """

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whoever waits for the thread has to learn of any
            on_error(error)

    try:
        threading.Thread(target=run, name=f"mrs-{name}", daemon=True).start()
    except RuntimeError as error:
        raise MrsError(
            "no thread can start",
            where=str(error),
            hint="raise the limit of processes: ulimit -u, or pids.max of the container",
        ) from error

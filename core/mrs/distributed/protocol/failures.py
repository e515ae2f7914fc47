"""Failures of other processes, and of threads that serve connections to them.

Connections may be closed by another thread at any moment, so each call of them may fail. A thread
that ends with an exception leaves those who wait for it waiting: what it raises is passed on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from mrs.errors import ExitCode, MrsError

#: A peer from which nothing was heard for this long counts as lost.
SILENCE_S = 6.0
#: How long a neighbour may take for its part of a step, and to connect before the first one: a
#: process that lives may still be stuck, or say that it lives and do nothing else.
STEP_LIMIT_S, CONNECT_LIMIT_S = 600.0, 120.0
#: How long a worker may load its weights, which it may have to download.
LOAD_LIMIT_S = 6 * 3600.0
#: How often each process says that it lives.
BEAT_S = 1.0


class PeerFailed(MrsError):
    """Another process of the cluster has ended, has failed, or does not answer."""

    exit_code = ExitCode.PEER_FAILED


class PeerReported(PeerFailed):
    """Another process has said itself why it cannot go on."""


class RejoinAsked(MrsError):
    """A third process is lost, and the coordinator waits `within_s` for all to join again."""

    exit_code = ExitCode.PEER_FAILED

    def __init__(self, text: str, within_s: float) -> None:
        super().__init__(text)
        self.within_s = within_s


class ClusterRefused(MrsError):
    """The two sides of a connection do not belong together; nobody is lost."""

    exit_code = ExitCode.USAGE


class CoordinatorLeft(MrsError):
    """The coordinator has ended its work in order."""

    exit_code = ExitCode.DONE


def words_for(error: Exception) -> str:
    """An error in words for other processes: an exception's name alone says nothing."""
    if isinstance(error, MrsError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" in {trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}"
    text = f": {error}" if str(error) else ""
    return f"internal error: {type(error).__name__}{where}{text}"


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

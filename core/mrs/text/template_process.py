"""A subprocess that renders chat templates, with nothing to steal and limits on time and memory.

Templates come with models from anyone. The subprocess has `walls` around it and none of this
process's environment; it may use `MAX_BYTES` of memory, and `MAX_SECONDS` of processor time for
each conversation. It starts at the first request, serves later ones, restarts
after a template had to be stopped, and ends with this process.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from mrs.errors import MrsError
from mrs.process.work import TurnLock, current_work
from mrs.text.child_process import answered_line, end_process, new_process

if TYPE_CHECKING:
    import subprocess

MAX_SECONDS = 10.0
MAX_BYTES = 512 * 2**20
_START_SECONDS = 60.0
#: The clock may run this many times the processor time: other programs want processors, too.
_PATIENCE = 10
#: Linux numbers the clock of a process ~pid << 3 | this.
_CLOCK_OF_PROCESS = 2
#: Processor time after which it is cheaper to end an abandoned template with its process.
_ABANDONED_SECONDS = 0.1
#: The least time between two looks at a process's processor time.
_LOOK_SECONDS = 0.02
#: Without its parent, the subprocess ends itself this much later than the parent would end it.
_GRACE_SECONDS = 1.0
#: The longest JSON encoding of a character, and of everything in a reply except the text.
_BYTES_PER_CHARACTER, _REPLY_BYTES = 12, 2**16
_READY_BYTES = 999


class Stopped(Exception):
    """A template was stopped; the message says why."""


class TemplateProcess:
    """Renders for any thread, one at a time: clients have it in turns."""

    def __init__(self) -> None:
        self._lock = TurnLock()
        self._watch: _Watch | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._walls: list[str] | None = None

    def start(self) -> None:
        """Start the subprocess if it is not running, without waiting for it.

        The first request raises what goes wrong.
        """
        with self._lock, suppress(MrsError):
            self._started()

    def stop(self) -> None:
        """End the subprocess if it is running."""
        with self._lock:
            self._end()

    def walls(self) -> list[str]:
        """The walls that stand around the subprocess, which this starts if it is not running.

        Raises MrsError if it does not start.
        """
        with self._lock:
            try:
                self._ready()
                return self._walls or []
            except BaseException:
                self._end()
                raise

    def ask(
        self, source: str, variables: dict[str, Any] | None, max_characters: int
    ) -> dict[str, Any]:
        """The reply of `sandbox` to a template and its variables; None only compiles it.

        Raises Stopped, Abandoned, and MrsError if the subprocess does not start.
        """
        request = {
            "source": source,
            "variables": variables,
            "max_characters": max_characters,
            "now": datetime.now().isoformat(),
            "seconds": MAX_SECONDS + _GRACE_SECONDS,
        }
        max_bytes = _BYTES_PER_CHARACTER * max_characters + _REPLY_BYTES
        with self._lock:
            try:
                return self._answered(json.dumps(request).encode() + b"\n", max_bytes)
            except BaseException:  # a late reply would be taken for the next one
                self._end()
                raise

    def _answered(self, request: bytes, max_bytes: int) -> dict[str, Any]:
        process, watch = self._ready()
        work = current_work()
        with watch.killed_after(MAX_SECONDS, process) as is_killed, work.telling(watch.hurry):
            line = answered_line(process, max_bytes, request)
        if is_killed.is_set():
            work.check()
            raise Stopped(f"the template takes longer than {MAX_SECONDS:g} s")
        return _checked(line)

    def _ready(self) -> tuple[subprocess.Popen[bytes], _Watch]:
        process, watch = self._started()
        if self._walls is None:
            with watch.killed_after(_START_SECONDS, process):
                line = answered_line(process, _READY_BYTES)
            if not line.endswith(b"\n"):
                raise _no_process("it ends at once")
            self._walls = json.loads(line)["walls"]
        return process, watch

    def _started(self) -> tuple[subprocess.Popen[bytes], _Watch]:
        if self._watch is None:
            self._watch = _Watch()
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = _new_process()
        return self._process, self._watch

    def _end(self) -> None:
        process, self._process, self._walls = self._process, None, None
        if process is not None:
            end_process(process)


def _checked(line: bytes) -> dict[str, Any]:
    """A reply, which may come from a template that got out of its sandbox. Raises Stopped."""
    reply: Any = None
    with suppress(ValueError, RecursionError):
        reply = json.loads(line) if line.endswith(b"\n") else None
    match reply:
        case {"text": str()} | {"stage": str(), "message": str(), "line": int() | None}:
            return dict(reply)
        case {"stage": "memory"}:
            raise Stopped(f"the template takes more memory than {MAX_BYTES >> 20} MiB")
    raise Stopped("the template crashes its process")


def _new_process() -> subprocess.Popen[bytes]:
    try:
        return new_process("mrs.text.sandbox", MAX_BYTES)
    except OSError as error:
        raise _no_process(error.strerror or str(error)) from error


def _no_process(reason: str) -> MrsError:
    return MrsError("the process for chat templates cannot be started", where=reason)


class _Task(NamedTuple):
    """What a process has to finish within `seconds`; otherwise it is killed and the event set."""

    process: subprocess.Popen[bytes]
    seconds: float
    used_before: float
    is_killed: threading.Event

    def seconds_left(self) -> float:
        """Seconds of processor time that are left: a lower bound on those of the clock."""
        return self.seconds - (_processor_seconds(self.process) - self.used_before)


class _Watch:
    """A thread that kills processes that take too long.

    It starts once: a thread that starts when no memory is left may end before it has said so, and
    `Thread.start` then waits for ever.
    """

    def __init__(self) -> None:
        #: A task when it starts, then perhaps another number of its seconds, None when it ends.
        self._changes: SimpleQueue[_Task | float | None] = SimpleQueue()
        threading.Thread(target=_watch, args=(self._changes,), daemon=True).start()

    @contextmanager
    def killed_after(
        self, seconds: float, process: subprocess.Popen[bytes]
    ) -> Iterator[threading.Event]:
        """Kills the process if it takes more than `seconds` for the block; then the event is set.

        These are seconds of processor time, or `_PATIENCE` times as many of the clock.
        """
        task = _Task(process, seconds, _processor_seconds(process), threading.Event())
        self._changes.put(task)
        try:
            yield task.is_killed
        finally:
            self._changes.put(None)

    def hurry(self) -> None:
        """Leave the task that runs only the time that is cheaper than a new process."""
        self._changes.put(_ABANDONED_SECONDS)


def _watch(changes: SimpleQueue[_Task | float | None]) -> None:
    while True:
        if isinstance(task := changes.get(), _Task) and not _ends(task, changes):
            task.is_killed.set()
            task.process.kill()


def _ends(task: _Task, changes: SimpleQueue[_Task | float | None]) -> bool:
    """Whether the task ends in its time."""
    last = time.monotonic() + _PATIENCE * task.seconds
    left = task.seconds
    while left > 0:
        with suppress(Empty):
            seconds = changes.get(timeout=max(left, _LOOK_SECONDS))
            if not isinstance(seconds, float):
                return True
            task = task._replace(seconds=seconds)
            last = min(last, time.monotonic() + _PATIENCE * seconds)
        left = min(task.seconds_left(), last - time.monotonic())
    return False


def _processor_seconds(process: subprocess.Popen[bytes]) -> float:
    """What a subprocess has used of the processors; on systems that do not say, the time.

    It opens no file: there may be none left.
    """
    try:
        return time.clock_gettime(~process.pid << 3 | _CLOCK_OF_PROCESS)
    except (AttributeError, OSError):
        return time.monotonic()


#: Longer conversations, with a fixed cost for each of their parts, take longer than a moment.
_LONG_CHARACTERS = 2**15
#: The subprocesses of this process, for usual conversations and for long ones, for which usual ones
#: need not wait. A fork of this process starts its own.
renderer, long_renderer = TemplateProcess(), TemplateProcess()
for each in (renderer, long_renderer):
    atexit.register(each.stop)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=each.__init__)  # type: ignore[misc]


def renderer_for(input_characters: int) -> TemplateProcess:
    """The one that renders conversations of a size."""
    return long_renderer if input_characters > _LONG_CHARACTERS else renderer

"""A subprocess that renders chat templates, with limits on time and memory.

Templates come with models from anyone. The subprocess may use `MAX_BYTES` of memory, and
`MAX_SECONDS` for each conversation. It starts at the first request, serves later ones, restarts
after a template had to be stopped, and ends with this process.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from mrs.errors import MrsError

if TYPE_CHECKING:
    import subprocess

MAX_SECONDS = 10.0
MAX_BYTES = 512 * 2**20
_START_SECONDS = 60.0
#: Without its parent, the subprocess ends itself this much later than the parent would end it.
_GRACE_SECONDS = 1.0
#: The longest JSON encoding of a character, and of everything in a reply except the text.
_BYTES_PER_CHARACTER, _REPLY_BYTES = 12, 2**16
_PROGRAM = """import sys
sys.path += sys.argv[2:]
from mrs.text.sandbox import serve
serve(int(sys.argv[1]))"""


class Stopped(Exception):
    """A template was stopped; the message says why."""


class TemplateProcess:
    """Renders for any thread, one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watch: _Watch | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False

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

    def ask(
        self, source: str, variables: dict[str, Any] | None, max_characters: int
    ) -> dict[str, Any]:
        """The reply of `sandbox` to a template and its variables; None only compiles it.

        Raises Stopped, and MrsError if the subprocess does not start.
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
        process, watch = self._started()
        with watch.killed_after(_START_SECONDS, process):
            self._is_ready = self._is_ready or _pipe(process.stdout).readline(99) == b"ready\n"
        if not self._is_ready:
            raise _no_process("it ends at once")
        with watch.killed_after(MAX_SECONDS, process) as is_killed:
            with suppress(BrokenPipeError):
                _pipe(process.stdin).write(request)
                _pipe(process.stdin).flush()
            line = _pipe(process.stdout).readline(max_bytes)
        if is_killed.is_set():
            raise Stopped(f"the template takes longer than {MAX_SECONDS:g} s")
        if not line.endswith(b"\n"):
            raise Stopped("the template crashes its process")
        reply: dict[str, Any] = json.loads(line)
        if reply.get("stage") == "memory":
            raise Stopped(f"the template takes more memory than {MAX_BYTES >> 20} MiB")
        return reply

    def _started(self) -> tuple[subprocess.Popen[bytes], _Watch]:
        if self._watch is None:
            self._watch = _Watch()
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = _new_process()
        return self._process, self._watch

    def _end(self) -> None:
        process, self._process, self._is_ready = self._process, None, False
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(BrokenPipeError):
                    _pipe(pipe).close()


def _new_process() -> subprocess.Popen[bytes]:
    """A Python process that imports our packages, but nothing from the working folder.

    It has its own session, so that Ctrl-C reaches only this process.
    """
    import subprocess

    folders = [str(Path(__file__).parents[2]), *filter(os.path.isabs, sys.path)]
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(MAX_BYTES), *folders]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
    except OSError as error:
        raise _no_process(error.strerror or str(error)) from error


def _no_process(reason: str) -> MrsError:
    return MrsError("the process for chat templates cannot be started", where=reason)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


class _Task(NamedTuple):
    """What a process has to finish within `seconds`; otherwise it is killed and the event set."""

    process: subprocess.Popen[bytes]
    seconds: float
    is_killed: threading.Event


class _Watch:
    """A thread that kills processes that take too long.

    It starts once: a thread that starts when no memory is left may end before it has said so, and
    `Thread.start` then waits for ever.
    """

    def __init__(self) -> None:
        #: A task when it starts, then None when it ends.
        self._changes: SimpleQueue[_Task | None] = SimpleQueue()
        threading.Thread(target=_watch, args=(self._changes,), daemon=True).start()

    @contextmanager
    def killed_after(
        self, seconds: float, process: subprocess.Popen[bytes]
    ) -> Iterator[threading.Event]:
        """Kills the process if the block takes longer than `seconds`; then the event is set."""
        task = _Task(process, seconds, threading.Event())
        self._changes.put(task)
        try:
            yield task.is_killed
        finally:
            self._changes.put(None)


def _watch(changes: SimpleQueue[_Task | None]) -> None:
    while True:
        if (task := changes.get()) is None:
            continue
        try:
            changes.get(timeout=task.seconds)
        except Empty:
            task.is_killed.set()
            task.process.kill()


#: The only subprocess of this process; a fork of this process starts its own.
renderer = TemplateProcess()
atexit.register(renderer.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: renderer.__init__())  # type: ignore[misc]

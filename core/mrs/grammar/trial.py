"""A process that compiles the grammars of strangers first, where that can be ended.

llguidance cannot be interrupted, and its own limits do not count all of its work: a schema of 2 KB
with a hundred patterns for names takes seconds. The process knows the control tokens of the
vocabulary; the texts of other tokens are not needed for compiling.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import signal
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from mrs.errors import MrsError
from mrs.grammar.limits import parser_limits, with_deep_stack
from mrs.grammar.vocabulary import Controls, without_texts
from mrs.process.work import TurnLock, current_work
from mrs.text.child_process import answered_line, end_process, new_process
from mrs.text.walls import raise_walls

if TYPE_CHECKING:
    import subprocess

    import llguidance

#: Of processor time, to compile a grammar.
MAX_SECONDS = 0.4
#: Memory for that, beside what the C library has set aside for its thread.
_MAX_BYTES = 48 * 2**20
#: What such a process may address where the system does not say how much it does.
_MOST_ADDRESSED_BYTES = 2**30
_REPLY_BYTES = 2**16
_MESSAGE_CHARACTERS = 1000


class TooMuchWork(Exception):
    """A grammar takes more than MAX_SECONDS of processor time, or too much memory."""


class GrammarTrial:
    """Compiles for any thread, one grammar at a time; clients have it in turns."""

    def __init__(self) -> None:
        self._lock = TurnLock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process if it is not running, without waiting for it. Raises MrsError."""
        with self._lock:
            self._started()

    def stop(self) -> None:
        with self._lock:
            self._end()

    def message(self, form: str, controls: Controls) -> str:
        """What is wrong with the grammars of llguidance's JSON `form`; empty if they compile.

        Raises TooMuchWork, Abandoned, and MrsError if the process does not start.
        """
        request = b"".join(json.dumps(each).encode() + b"\n" for each in (controls, form))
        with self._lock:
            process, work = self._started(), current_work()
            try:
                with work.telling(process.kill):
                    line = answered_line(process, _REPLY_BYTES, request)
                work.check()
                if not line.endswith(b"\n"):
                    raise TooMuchWork
                return str(json.loads(line))
            except BaseException:  # a late answer would be taken for the next one
                self._end()
                raise

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            try:
                self._process = new_process(__name__, _MAX_BYTES)
            except OSError as error:
                reason = error.strerror or str(error)
                raise MrsError(
                    "the process for grammars cannot be started", where=reason
                ) from error
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_process(process)


def serve(max_bytes: int) -> None:
    """Answer requests from standard input on standard output, each two lines of JSON.

    Grammars may take `max_bytes` of memory.
    """
    with_deep_stack(lambda: _serve(max_bytes))


def _serve(max_bytes: int) -> None:
    nothing = Controls(1, {}, [0])
    _message_of('{"grammars": [{"lark_grammar": "start: \\"a\\""}]}', without_texts(nothing))
    raise_walls(_addressed_bytes() + max_bytes)
    lines = iter(sys.stdin.buffer)
    for controls, form in zip(lines, lines, strict=False):
        vocabulary = _vocabulary(controls)
        _end_after(MAX_SECONDS)
        message = _message_of(json.loads(form), vocabulary)
        _end_after(0)
        sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
        sys.stdout.buffer.flush()


def _addressed_bytes() -> int:
    """What this process addresses, most of it without using it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    except OSError:
        return _MOST_ADDRESSED_BYTES


def _end_after(seconds: float) -> None:
    """Let the system end this process after `seconds` of processor time; 0 cancels that."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _message_of(form: str, vocabulary: llguidance.LLTokenizer) -> str:
    import llguidance

    matcher = llguidance.LLMatcher(vocabulary, form, log_level=0, limits=parser_limits())
    return matcher.get_error()[:_MESSAGE_CHARACTERS] if matcher.is_error() else ""


@lru_cache(maxsize=2)
def _vocabulary(controls: bytes) -> llguidance.LLTokenizer:
    size, texts, ends = json.loads(controls)
    return without_texts(Controls(size, {int(token): text for token, text in texts.items()}, ends))


#: The only one of this process; a fork of this process starts its own.
trial = GrammarTrial()
atexit.register(trial.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: trial.__init__())  # type: ignore[misc]

"""How the program ends: every way out has a code, and every error is one line."""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from mrs.errors import ExitCode, MrsError, NotReadable, UsageError, shortened
from mrs_cli.environment import Environment
from mrs_cli.render.error_lines import say, show_error


def ended(environment: Environment, words: list[str], work: Callable[[], int]) -> int:
    """The exit code of `work`, with what went wrong said on standard error."""
    try:
        code = work()
        environment.stdout.flush()
        return code
    except KeyboardInterrupt:
        say(environment, "interrupted")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _discard_output(environment)
        return ExitCode.DONE
    except MrsError as error:
        return _failed(environment, words, error)
    except OSError as error:
        return _failed(environment, words, _refused(environment, error))
    except Exception as error:  # noqa: BLE001 - no error may end as a traceback
        if _is_out_of_memory(error):
            hint = "make room, or raise the limit (ulimit -v, a container's)"
            return _failed(environment, words, OutOfMemory("the memory ran out", hint=hint))
        shown = _show_traceback(environment, words)
        hint = "" if shown else "; -vv shows where"
        what = shortened(f"internal error: {type(error).__name__}: {error}")
        show_error(environment, f"{what}{hint}")
        return ExitCode.INTERNAL


class OutOfMemory(MrsError):
    """The system gave no more memory, or no room in the address space."""

    exit_code = ExitCode.DOES_NOT_FIT


def _failed(environment: Environment, words: list[str], error: MrsError) -> int:
    _show_traceback(environment, words)
    show_error(environment, str(error))
    return error.exit_code


def _refused(environment: Environment, error: OSError) -> MrsError:
    """What the system refused and nothing before this has explained."""
    reason = error.strerror or str(error)
    if error.errno == errno.ENOMEM:
        return OutOfMemory("the memory ran out", where=reason)
    if error.filename is not None:
        return NotReadable(f"cannot use {os.fsdecode(error.filename)}", where=reason)
    try:
        os.read(environment.stdin.fileno(), 0)
    except (OSError, ValueError):
        return UsageError("standard input cannot be read", where=reason)
    _discard_output(environment)
    return UsageError("standard output cannot be written", where=reason)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory is what is missing, by type or by the words of the loader and of torch."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or any(
        words in said
        for words in ("failed to map segment", "cannot allocate memory", "can't allocate memory")
    )


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the program like an interruption, after everything has cleaned up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(int(ExitCode.INTERRUPTED))

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def interruptible(environment: Environment) -> Iterator[None]:
    """Ctrl-C ends the block, in which nothing is to be saved, with a KeyboardInterrupt.

    While a library is imported, which may swallow that or fail of it, it ends the process.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if not _is_importing(frame):
            raise KeyboardInterrupt
        if environment.can_animate(environment.stderr):
            with suppress(OSError):  # the bars go, and the cursor comes back
                environment.stderr.write("\r\x1b[K\x1b[?25h")
        say(environment, "interrupted")
        os._exit(ExitCode.INTERRUPTED)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _discard_output(environment: Environment) -> None:
    """Nobody reads on: what the interpreter still flushes at its exit goes nowhere."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, environment.stdout.fileno())
        os.close(nowhere)


def _show_traceback(environment: Environment, words: list[str]) -> bool:
    """Shows the exception being handled where `-vv` is among `words`.

    The words are searched, not parsed: what failed may be the parsing.
    """
    counts = [word.count("v") for word in words if re.fullmatch(r"-[iqv]+", word)]
    if sum(counts) + words.count("--verbose") < 2:
        return False
    import traceback

    with suppress(OSError):
        traceback.print_exc(file=environment.stderr)
    return True

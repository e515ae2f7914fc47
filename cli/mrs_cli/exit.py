"""How the program ends: with an exit code, and with one line for an error."""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from mrs.errors import ExitCode, MrsError, NotReadable, UsageError, is_out_of_memory, shortened
from mrs_cli.environment import Environment
from mrs_cli.render.error_lines import say, show_error

_MEMORY_HINT = "free some memory, or raise the limit (ulimit -v, or the container's)"


def exit_code_of(environment: Environment, words: list[str], work: Callable[[], int]) -> int:
    """The exit code of `work`; an error is one line on standard error."""
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
        return _failed(environment, words, _system_error(environment, error))
    except Exception as error:  # noqa: BLE001 - no error may end in a traceback
        if is_out_of_memory(error):
            return _failed(environment, words, OutOfMemory("out of memory", hint=_MEMORY_HINT))
        shown = _show_traceback(environment, words)
        hint = "" if shown else "; -vv shows where"
        what = shortened(f"internal error: {type(error).__name__}: {error}")
        show_error(environment, f"{what}{hint}")
        return ExitCode.INTERNAL


class OutOfMemory(MrsError):
    """The system has no more memory, or no more addresses, for this process."""

    exit_code = ExitCode.DOES_NOT_FIT


def _failed(environment: Environment, words: list[str], error: MrsError) -> int:
    _show_traceback(environment, words)
    show_error(environment, error)
    return error.exit_code


def _system_error(environment: Environment, error: OSError) -> MrsError:
    """An error of the system that no other code has explained."""
    reason = error.strerror or str(error)
    if error.errno == errno.ENOMEM:
        return OutOfMemory("out of memory", where=reason, hint=_MEMORY_HINT)
    if error.filename is not None:
        return NotReadable(f"cannot use {os.fsdecode(error.filename)}", where=reason)
    try:
        os.read(environment.stdin.fileno(), 0)
    except (OSError, ValueError):
        return UsageError("standard input cannot be read", where=reason)
    _discard_output(environment)
    return UsageError("standard output cannot be written", where=reason)


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the program like Ctrl-C, after all clean-up."""
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
    """Ctrl-C ends the block with a KeyboardInterrupt.

    While a library is imported it ends the process instead, because the library might catch the
    exception or be left broken. So the block must have nothing to save.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if not _is_importing(frame):
            raise KeyboardInterrupt
        _say_last(environment, "interrupted")
        os._exit(ExitCode.INTERRUPTED)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _say_last(environment: Environment, text: str) -> None:
    """One line on standard error in the place of a progress bar, which another thread draws."""
    before = "\r\x1b[K\x1b[?25h" if environment.can_animate(environment.stderr) else ""
    with suppress(OSError, ValueError):
        number = environment.stderr.fileno()
        last, nowhere = os.dup(number), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)  # the bar is drawn there from now on
        os.write(last, f"{before}mrs: {text}\n".encode())


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _discard_output(environment: Environment) -> None:
    """Sends to nowhere what the interpreter flushes at its exit: nobody reads it."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, environment.stdout.fileno())
        os.close(nowhere)


def _show_traceback(environment: Environment, words: list[str]) -> bool:
    """Prints the current traceback if `words` contain `-vv`, and returns whether they do.

    The words are searched, not parsed, because the parser itself may have failed.
    """
    counts = [word.count("v") for word in words if re.fullmatch(r"-[iqv]+", word)]
    if sum(counts) + words.count("--verbose") < 2:
        return False
    import traceback

    with suppress(OSError):
        traceback.print_exc(file=environment.stderr)
    return True

"""Processes of Python for work that a thread could not be made to end."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

#: What Python needs to find its libraries and the time zone; all else may be a secret.
_KEPT_VARIABLES = ("SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZ")
_PROGRAM = """import sys
sys.path += sys.argv[2:]
from MODULE import serve
serve(int(sys.argv[1]))"""


def new_process(module: str, max_bytes: int) -> subprocess.Popen[bytes]:
    """A process that calls `serve` of one of our modules, which may take `max_bytes` of memory.

    It imports our packages, but nothing from the working folder. It has its own session, so that
    Ctrl-C reaches only this process, and no files but its pipes. Raises OSError.
    """
    import subprocess

    folders = [str(Path(__file__).parents[2]), *filter(os.path.isabs, sys.path)]
    variables = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    program = _PROGRAM.replace("MODULE", module)
    command = [sys.executable, "-I", "-S", "-W", "ignore", "-c", program, str(max_bytes), *folders]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=variables,
        cwd=os.path.abspath(os.sep),  # noqa: PTH100 - a folder that no one removes
        start_new_session=True,
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
    )


def answered_line(process: subprocess.Popen[bytes], max_bytes: int, request: bytes = b"") -> bytes:
    """The next line that a process writes, after `request`; what there is of it if it ends."""
    with suppress(BrokenPipeError):
        _pipe(process.stdin).write(request)
        _pipe(process.stdin).flush()
    return _pipe(process.stdout).readline(max_bytes)


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, and close its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):
            _pipe(pipe).close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe

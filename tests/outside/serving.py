"""A server of the demo model in a process of its own, for programs that nobody here wrote."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving(*flags: str) -> Iterator[str]:
    """The address of `mrs serve -m demo` with these flags, which ends with the context."""
    with server_process(*flags) as (_, address):
        yield address


@contextmanager
def server_process(
    *flags: str, group: Path | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """As `serving`, with the process before its address, and in a control group of Linux.

    `group` is the file where the group's processes are written to.
    """
    command = [sys.executable, "-m", "mrs_cli", "serve", "-p", "0", *flags]
    if not {"-m", "--config"} & {*flags}:
        command += ["-m", "demo"]
    if group is not None:
        command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group), *command]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            for line in server.stderr:
                sys.stderr.write(line)
                if found := re.search(r"http://[^/\s]+", line):
                    yield server, found[0]
                    return
            raise RuntimeError(f"the server ended with exit code {server.wait()}")
        finally:
            server.terminate()
            sys.stderr.write(server.stderr.read())


def run(*command: str | Path, folder: Path | None = None) -> int:
    """Run a program whose output goes to the terminal; its exit code."""
    print("+", *command, flush=True)
    return subprocess.run([str(word) for word in command], cwd=folder, check=False).returncode


def venv_with(*packages: str) -> Path:
    """The folder of programs of a virtual environment with these packages, made once.

    It has our own packages, too, so that torch is not downloaded again.
    """
    name = "-".join(re.sub(r"\W+", "_", package) for package in packages)
    folder = Path(tempfile.gettempdir()) / "mrs-outside" / name
    programs = folder / ("Scripts" if sys.platform == "win32" else "bin")
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        (site,) = folder.glob("**/site-packages")
        (site / "ours.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        subprocess.run([programs / "pip", "install", "-q", *packages], check=True)
        (folder / "complete").touch()
    return programs

"""A server in a process of its own, in a control group of its planned memory, seen from outside."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil

from memory.memory_group import kills_in, memory_group

#: What a server may need beyond its plan, as a share of it.
ROOM = 0.1


def planned_bytes(model: str) -> int:
    """All memory of this machine that `mrs serve` plans for a model."""
    command = [sys.executable, "-m", "mrs_cli", "plan", "run", "-m", model, "--dry-run", "--json"]
    plan = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return int(plan["server"]["host_bytes"])


class Server:
    """What the operating system says of a server and of the processes that it starts."""

    def __init__(self, number: int, url: str, log: IO[str], group: Path | None) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self.address = (host, int(port))
        self._main = psutil.Process(number)
        self._log, self._group = log, group

    @property
    def is_in_group(self) -> bool:
        return self._group is not None

    @property
    def is_alive(self) -> bool:
        return self._main.is_running() and self._main.status() != psutil.STATUS_ZOMBIE

    @property
    def kills(self) -> int:
        """Processes that were killed since the group had no memory left."""
        return 0 if self._group is None else kills_in(self._group)

    def processor_s(self) -> float:
        """Processor time of all, children that have ended included."""
        times = [self._main.cpu_times(), *(each.cpu_times() for each in self._children())]
        gone = times[0].children_user + times[0].children_system
        return gone + sum(each.user + each.system for each in times)

    def peak_bytes(self) -> int:
        """The sum of the most resident memory that each process has had."""
        return sum(_peak_bytes(each) for each in (self._main, *self._children()))

    def settled_s(self) -> float:
        """`processor_s` once the server does nothing any more."""
        before, deadline_s = self.processor_s(), time.monotonic() + 60
        while time.monotonic() < deadline_s:
            time.sleep(0.03)
            if (now := self.processor_s()) - before < 0.02:
                return now
            before = now
        return before

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def _children(self) -> list[psutil.Process]:
        return self._main.children(recursive=True)


def _peak_bytes(process: psutil.Process) -> int:
    try:
        text = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:  # it has ended
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


@contextmanager
def server_within(limit_bytes: int, model: str, *flags: str) -> Iterator[Server]:
    """`mrs serve` in a control group with that limit, or in none where none can be made."""
    command = [sys.executable, "-m", "mrs_cli", "serve", "-p", "0", *flags, "-m", model]
    with memory_group(limit_bytes) as group, tempfile.TemporaryFile("w+") as log:
        if group is not None:
            command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group), *command]
        with subprocess.Popen(command, stderr=log, stdout=log) as process:
            try:
                yield Server(process.pid, _address(process, log), log, group)
            finally:
                process.terminate()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()


def _address(process: subprocess.Popen[bytes], log: IO[str]) -> str:
    """Where it listens, once it does. Raises RuntimeError."""
    while process.poll() is None:
        time.sleep(0.1)
        log.seek(0)
        if found := re.search(r"http://[^/\s]+", log.read()):
            return found[0]
    raise RuntimeError(f"the server ended with exit code {process.returncode}")

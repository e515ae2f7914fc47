"""Workers on this machine, which the head starts itself and which end with it."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time

from mrs.distributed.failures import PeerFailed
from mrs.distributed.secret import FILE_VARIABLE, VARIABLE
from mrs.errors import MrsError

_END_S = 4.0
#: The process that has started a worker, without which it must not wait for a head.
PARENT_VARIABLE = "MRS_PARENT_PID"


def new_secret() -> bytes:
    """A secret that only this process and its workers know."""
    return secrets.token_hex(32).encode()


class LocalRanks:
    """Processes that run `mrs worker --once`."""

    def __init__(self, count: int, address: tuple[str, int], secret: bytes) -> None:
        host, port = address
        command = [sys.executable, "-m", "mrs_cli", "worker", "--once", "--quiet"]
        command += ["--join", f"{host}:{port}"]
        variables = {**os.environ, VARIABLE: secret.decode("ascii")}
        variables[PARENT_VARIABLE] = str(os.getpid())
        variables.pop(FILE_VARIABLE, None)
        for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
            variables.pop(name, None)
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for _ in range(count):
                # A session of its own, so that a Ctrl-C of the terminal reaches the head alone.
                process = subprocess.Popen(
                    command, env=variables, stdin=subprocess.DEVNULL, start_new_session=True
                )
                self._processes.append(process)
        except OSError as error:
            self.end()
            raise MrsError("a worker cannot be started", where=error.strerror or "") from error

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def check(self) -> None:
        """Raises PeerFailed if a process has ended."""
        for process in self._processes:
            if (code := process.poll()) is not None:
                how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
                raise PeerFailed(f"the worker with process id {process.pid} has ended {how}")

    def end(self, wait_s: float = _END_S) -> None:
        """Wait until all have ended by themselves; kill those that do not."""
        until_s = time.monotonic() + wait_s
        for process in self._processes:
            try:
                process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

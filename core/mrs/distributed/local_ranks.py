"""Workers on this machine, which the head starts itself and which end with it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping

from mrs.distributed.protocol.failures import PeerFailed
from mrs.distributed.protocol.secret import FILE_VARIABLE, VARIABLE
from mrs.errors import MrsError

_END_S = 4.0
#: The process that has started a worker, without which it must not wait for a head.
PARENT_VARIABLE = "MRS_PARENT_PID"
_CARDS = "CUDA_VISIBLE_DEVICES"


def card_variable(rank: int, cards: int, variables: Mapping[str, str]) -> dict[str, str]:
    """What makes one of several cards the only one that process `rank` of a machine sees."""
    if cards < 2:
        return {}
    visible = [each.strip() for each in variables.get(_CARDS, "").split(",") if each.strip()]
    names = visible or [str(number) for number in range(cards)]
    return {_CARDS: names[rank % len(names)]}


class LocalRanks:
    """Processes that run `mrs worker --once`.

    If this machine has several `cards`, each process has one of them, after that of the head.
    """

    def __init__(self, count: int, address: tuple[str, int], secret: bytes, cards: int = 0) -> None:
        host, port = address
        self._command = [sys.executable, "-m", "mrs_cli", "worker", "--once", "--quiet"]
        self._command += ["--join", f"{host}:{port}"]
        self._variables = {**os.environ, VARIABLE: secret.decode("ascii")}
        self._variables[PARENT_VARIABLE] = str(os.getpid())
        for name in (FILE_VARIABLE, "RANK", "WORLD_SIZE", "SLURM_PROCID"):
            self._variables.pop(name, None)
        self._cards = cards
        self._processes: list[subprocess.Popen[bytes]] = []
        self._has_ended = False
        self._lock = threading.Lock()
        try:
            for rank in range(1, count + 1):
                self._processes.append(self._started(rank))
        except MrsError:
            self.end()
            raise

    def _started(self, rank: int) -> subprocess.Popen[bytes]:
        try:
            # A session of its own, so that a Ctrl-C of the terminal reaches the head alone.
            return subprocess.Popen(
                self._command,
                env={**self._variables, **card_variable(rank, self._cards, self._variables)},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
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

    def kill(self, pid: int) -> None:
        """End a process that does not answer, if it is one of these."""
        for process in self._processes:
            if process.pid == pid:
                process.kill()
                process.wait()

    def revive(self) -> None:
        """Start processes that have ended again. Raises MrsError."""
        with self._lock:
            for number, process in enumerate(self._processes):
                if process.poll() is not None and not self._has_ended:
                    self._processes[number] = self._started(number + 1)

    def end(self, wait_s: float = _END_S) -> None:
        """Wait until all have ended by themselves; kill those that do not."""
        with self._lock:  # none is started again after this
            self._has_ended = True
        until_s = time.monotonic() + wait_s
        for process in self._processes:
            try:
                process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

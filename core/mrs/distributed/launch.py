"""Ranks that torchrun or Slurm has started, and workers that this process starts itself."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from mrs.distributed.protocol.failures import PeerFailed, start_thread
from mrs.distributed.protocol.handshake import bound_socket
from mrs.distributed.protocol.secret import FILE_VARIABLE, VARIABLE, find_secret
from mrs.errors import MrsError, UsageError
from mrs.request import RunRequest

#: How long workers may take to end by themselves.
_END_S = 4.0
#: The process that has started a worker, without which it must not wait for a coordinator.
PARENT_VARIABLE = "MRS_PARENT_PID"
_CARDS = "CUDA_VISIBLE_DEVICES"
#: How long the ranks wait for each other.
_MEET_LIMIT_S = 600
#: So often it may take this long until a store that is there answers.
_MOST_SILENT, _ANSWER_S = 2, 8.0
_KEY = "mrs/port"
#: By which variables torchrun and Slurm say that all ranks are on one machine.
_LOCAL_WORLD, _NODES = "LOCAL_WORLD_SIZE", ("SLURM_STEP_NUM_NODES", "SLURM_NNODES")


def card_variable(rank: int, cards: int, variables: Mapping[str, str]) -> dict[str, str]:
    """What makes one of several cards the only one that process `rank` of a machine sees."""
    if cards < 2:
        return {}
    visible = [name.strip() for name in variables.get(_CARDS, "").split(",") if name.strip()]
    names = visible or [str(number) for number in range(cards)]
    return {_CARDS: names[rank % len(names)]}


class LocalRanks:
    """Processes that run `mrs worker --once`.

    If this machine has several `cards`, each process has one of them, after the coordinator's.
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
            # A session of its own, so that a Ctrl-C of the terminal reaches the coordinator alone.
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


class LaunchedRank(NamedTuple):
    """This process among `world`, which meet in torch's store at `host`:`port`.

    Whoever reaches the store can read and write it, so it has nothing but the port of the
    coordinator, and who is there has to prove the secret.
    """

    rank: int
    world: int
    host: str
    port: int
    is_agents_store: bool
    is_one_machine: bool

    def secret(self, variables: Mapping[str, str] = os.environ) -> bytes:
        """The secret of all ranks: that of the user, if all are on one machine.

        Raises UsageError if ranks of several machines have not been given one.
        """
        return find_secret("localhost" if self.is_one_machine else self.host, variables)

    def publish(self, port: int) -> None:
        """Tell the others at which port of `host` the coordinator listens. Raises UsageError."""
        store = self._store()
        store.set(_KEY, str(port))
        _stores.append(store)

    def find_coordinator(self) -> tuple[str, int]:
        """Where the coordinator listens. Raises PeerFailed.

        torch's store waits without limit for who accepts its connection and says nothing.
        """
        answers: SimpleQueue[str | Exception] = SimpleQueue()
        has_met = threading.Event()

        def ask() -> None:
            store = self._store()
            has_met.set()
            answers.put(store.get(_KEY).decode())

        start_thread("store", ask, answers.put)
        silent, answer = 0, None
        while not isinstance(answer, str):
            with suppress(Empty):
                answer = answers.get(timeout=_ANSWER_S)
            silent += answer is None and not has_met.is_set() and self._is_listening()
            if silent == _MOST_SILENT or isinstance(answer, Exception):
                raise PeerFailed(
                    f"rank 0 does not answer at {self.host}, port {self.port}",
                    hint="if another program has the port, choose another MASTER_PORT",
                )
        if not re.fullmatch(r"[0-9]{1,5}", answer) or not 0 < int(answer) < 65536:
            raise PeerFailed(
                f"what rank 0 says at {self.host}, port {self.port}, is not a port",
                hint="another program writes there: choose another MASTER_PORT",
            )
        return self.host, int(answer)

    def _is_listening(self) -> bool:
        """Whether anybody accepts connections where rank 0 should."""
        with suppress(OSError):
            socket.create_connection((self.host, self.port), timeout=_ANSWER_S).close()
            return True
        return False

    def _store(self) -> Any:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        is_server = self.rank == 0 and not self.is_agents_store
        listener = None
        if is_server:  # torch itself would listen on all addresses
            hint = "choose another MASTER_PORT"
            listener = bound_socket((self.host, self.port), hint, "MASTER_ADDR")
        return TCPStore(
            self.host,
            self.port,
            is_master=is_server,
            timeout=timedelta(seconds=_MEET_LIMIT_S),
            wait_for_workers=False,
            master_listen_fd=None if listener is None else listener.detach(),
        )


#: The coordinator's store lives as long as the process.
_stores: list[Any] = []


def launched(variables: Mapping[str, str] = os.environ) -> LaunchedRank | None:
    """What torchrun's variables say, or Slurm's with MASTER_ADDR and MASTER_PORT; None for none.

    Raises UsageError for values that make no sense.
    """
    for rank, world in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if rank in variables and world in variables and "MASTER_ADDR" in variables:
            break
    else:
        return None
    names = (rank, world, "MASTER_PORT")
    try:
        numbers = [int(variables.get(name, "29500")) for name in names]
    except ValueError:
        raise UsageError(
            f"{', '.join(names)} are not numbers", hint="unset them, or start with torchrun"
        ) from None
    if not 0 <= numbers[0] < numbers[1] or not 0 < numbers[2] < 65536:
        raise UsageError(f"{', '.join(f'{n}={variables.get(n)}' for n in names)} make no sense")
    if numbers[1] == 1:
        return None
    if "TORCHELASTIC_RUN_ID" in variables and variables.get("OMP_NUM_THREADS") == "1":
        os.environ.pop("OMP_NUM_THREADS", None)  # torchrun's default makes CPUs needlessly slow
    if (local := variables.get("LOCAL_RANK", "")).isdecimal():
        os.environ.update(card_variable(int(local), _cards(), variables))
    is_agents = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    host = variables["MASTER_ADDR"]
    nodes = next((variables[name] for name in _NODES if name in variables), "")
    is_one = variables.get(_LOCAL_WORLD) == variables[world] if rank == "RANK" else nodes == "1"
    return LaunchedRank(numbers[0], numbers[1], host, numbers[2], is_agents, is_one)


def _cards() -> int:
    """How many cards the processes of this machine share out, if each sees all of them."""
    from mrs.devices.probe import probe_devices

    return sum(device.torch_device.startswith("cuda") for device in probe_devices())


def ranks_of(request: RunRequest) -> int:
    """The number of processes that a request asks for, this one included."""
    cluster = request.cluster
    assert cluster is not None
    workers = cluster.workers or cluster.wait_for
    if workers:
        return workers + 1
    rank = launched()
    return 1 if rank is None else rank.world

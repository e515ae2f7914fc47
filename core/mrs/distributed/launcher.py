"""Ranks that torchrun, Slurm or another launcher has started, by the usual variables."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from mrs.distributed.local_ranks import card_variable
from mrs.distributed.protocol.failures import PeerFailed, start_thread
from mrs.distributed.protocol.handshake import bound_socket
from mrs.distributed.protocol.secret import find_secret
from mrs.errors import UsageError

#: How long the ranks wait for each other.
_MEETING_S = 600
#: So often it may take this long until a store that is there answers.
_MOST_SILENT, _ANSWER_S = 2, 8.0
_KEY = "mrs/port"
#: By which variables torchrun and Slurm say that all ranks are on one machine.
_LOCAL_WORLD, _NODES = "LOCAL_WORLD_SIZE", ("SLURM_STEP_NUM_NODES", "SLURM_NNODES")


class LaunchedRank(NamedTuple):
    """This process among `world`, which meet in torch's store at `host`:`port`.

    Whoever reaches the store can read and write it, so it has nothing but the port of the head, and
    who is there has to prove the secret.
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
        """Tell the others at which port of `host` the head listens. Raises UsageError."""
        store = self._store()
        store.set(_KEY, str(port))
        _stores.append(store)

    def find_head(self) -> tuple[str, int]:
        """Where the head listens. Raises PeerFailed.

        torch's store waits without limit for who accepts its connection and says nothing.
        """
        found: SimpleQueue[str | Exception] = SimpleQueue()
        has_met = threading.Event()

        def ask() -> None:
            store = self._store()
            has_met.set()
            found.put(store.get(_KEY).decode())

        start_thread("store", ask, found.put)
        silent, answer = 0, None
        while not isinstance(answer, str):
            with suppress(Empty):
                answer = found.get(timeout=_ANSWER_S)
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
            timeout=timedelta(seconds=_MEETING_S),
            wait_for_workers=False,
            master_listen_fd=None if listener is None else listener.detach(),
        )


#: The head's store lives as long as the process.
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

    return sum(each.torch_device.startswith("cuda") for each in probe_devices())

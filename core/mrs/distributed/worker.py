"""A worker: joins a head, loads its layers, and computes them until the head leaves."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mrs.devices.device import Device
from mrs.distributed.channel import Channel, Damaged
from mrs.distributed.failures import SILENCE_S, HeadLeft, PeerFailed, RejoinAsked
from mrs.distributed.hidden_states import receive_hidden, send_hidden
from mrs.distributed.link import Link
from mrs.distributed.link_speed import echo_link, measure_link
from mrs.distributed.loaded_part import LoadedPart, NewPlanner, load_assigned
from mrs.distributed.meeting import Listener, dial
from mrs.distributed.messages import (
    Assignment,
    Attach,
    Connect,
    Connected,
    ConnectGroup,
    DeviceReport,
    Failed,
    Join,
    Ready,
    Step,
)
from mrs.distributed.rank_group import RankGroup
from mrs.errors import ExitCode, MrsError

_DIAL_AGAIN_S = 0.3
#: After the head is lost, a step that does not end is not waited for any longer.
_LAST_STEP_S = 1.5
Say = Callable[[str], None]


class WorkerSettings(NamedTuple):
    """How to join: `rank` 0 lets the head choose, `model_id` is this machine's copy of the model.

    With `once` the worker ends when the head leaves; otherwise it keeps its weights for the next.
    A worker with a `parent_pid` was started by the head itself, and waits for no other.
    """

    address: tuple[str, int]
    secret: bytes
    once: bool = False
    rank: int = 0
    model_id: str | None = None
    name: str = ""
    parent_pid: int = 0


def run_worker(settings: WorkerSettings, say: Say, new_planner: NewPlanner) -> None:
    """Serve heads one after another. Raises MrsError; PeerFailed with `once` if one is lost."""
    part: LoadedPart | None = None
    asked: RejoinAsked | None = None
    tell = _without_repeats(say)
    while True:
        session = _Session(settings, _dialed(settings, tell, asked))
        asked = None
        try:
            assignment = session.join(part.plan_hash if part is not None else "")
            if part is None or part.plan_hash != assignment.plan_hash:
                part = None
                gc.collect()  # frees other weights: the error that ended their session has them
                part = session.load(assignment, new_planner)
            session.serve(part, say)
        except HeadLeft:
            if settings.once:
                return
            say("the head has left; the weights stay loaded for the next one")
        except RejoinAsked as error:
            asked = error
            say(f"{error}; joining the head again")
        except PeerFailed as error:
            if settings.once:
                raise
            tell(f"error: {error}")
            time.sleep(_DIAL_AGAIN_S)
        finally:
            session.close()


def _without_repeats(say: Say) -> Say:
    """Says nothing twice in a row: a head that has all of its workers is dialed again and again."""
    last = ""

    def tell(text: str) -> None:
        nonlocal last
        if text != last:
            say(text)
        last = text

    return tell


def _dialed(settings: WorkerSettings, say: Say, asked: RejoinAsked | None) -> Channel:
    """A connection to the head, which may start later.

    A worker that ends with its head waits only as long as the head does that has `asked` for it.
    """
    host, port = settings.address
    is_told, since_s = False, time.monotonic()
    limit_s = asked.within_s + SILENCE_S if asked is not None and settings.once else None
    while True:
        if settings.parent_pid and os.getppid() != settings.parent_pid:
            raise PeerFailed("the head has ended before this worker has joined it")
        try:
            return dial(settings.address, settings.secret)
        except OSError as error:
            waited_s = time.monotonic() - since_s
            if limit_s is not None and waited_s > limit_s:
                raise PeerFailed(
                    f"{asked}; the head does not answer since {waited_s:.0f} s"
                ) from None
            if not is_told and waited_s > 2 * _DIAL_AGAIN_S:
                reason = error.strerror or str(error)
                say(f"waiting for a head at {host}:{port} ({reason})")
                is_told = True
            time.sleep(_DIAL_AGAIN_S)


class _Session:
    """One head's use of this worker."""

    def __init__(self, settings: WorkerSettings, channel: Channel) -> None:
        self._settings = settings
        self._listener = Listener((channel.own_host, 0), settings.secret)
        self._neighbours: list[Channel] = []
        self._is_closed = threading.Event()
        host, port = settings.address
        self._link = Link(channel, f"the head at {host}:{port} (rank 0)", self._on_end)
        self._assignment: Assignment | None = None

    def join(self, loaded: str) -> Assignment:
        """Get an assignment; `loaded` is the `plan_hash` of the one whose weights there are."""
        self._link.doing = "while waiting for an assignment"
        self._link.send(_join(self._settings, self._listener.address[1], loaded))
        self._assignment = self._link.take(Assignment)
        return self._assignment

    def load(self, assignment: Assignment, new_planner: NewPlanner) -> LoadedPart:
        """Load the layers of an assignment. Raises MrsError."""
        self._link.doing = f"while loading layers {assignment.first} to {assignment.end - 1}"
        try:
            return load_assigned(assignment, self._settings.model_id, new_planner)
        except Exception as error:
            self._report(error)
            raise

    def serve(self, part: LoadedPart, say: Say) -> None:
        """Compute steps until the link ends. Raises HeadLeft, PeerFailed or another MrsError."""
        own = self._assignment
        assert own is not None
        try:
            self._link.send(Ready(part.weight_bytes, part.stage.cache_infos))
        except PeerFailed as error:  # the head may have said why while the weights were loaded
            raise self._link.reason(SILENCE_S + 1) or error from error
        share = "a share of " if own.is_share else ""
        say(f"rank {own.rank} has {share}layers {own.first} to {own.end - 1}")
        try:
            compute = self._joined_share(part, own)
            if compute is None:
                compute = self._joined_layers(part, own)
            while True:
                step = self._link.take(Step)
                self._link.doing = f"in step {step.number}"
                compute(step)
                self._link.doing = f"after step {step.number}"
        except (HeadLeft, PeerFailed, RejoinAsked):
            raise
        except (OSError, EOFError) as error:
            raise self._reason(error) from error
        except Exception as error:
            self._report(error)
            raise

    def close(self) -> None:
        self._is_closed.set()
        self._link.close()
        self._listener.close()
        for channel in self._neighbours:
            channel.close()

    def _joined_share(self, part: LoadedPart, own: Assignment) -> Callable[[Step], None] | None:
        """What computes steps together with all other ranks; None without shares of layers."""
        if part.share is None:
            return None
        share, connect = part.share, self._link.take(ConnectGroup)
        addresses = [self._settings.address, *connect.workers]
        channels = {}
        for rank in range(own.rank):
            channels[rank] = dial(addresses[rank], self._settings.secret)
            self._neighbours.append(channels[rank])
            channels[rank].send(Attach(own.rank, "group"))
        for _ in range(own.world - own.rank - 1):
            channel, attach = self._attached()
            channels[attach.rank] = channel
        if set(channels) != set(range(own.world)) - {own.rank}:
            raise Damaged(f"connections of ranks {sorted(channels)} for rank {own.rank}")
        share.decoder.join(RankGroup(own.rank, channels, Path(connect.memory)))
        self._link.send(Connected())
        return share.compute

    def _joined_layers(self, part: LoadedPart, own: Assignment) -> Callable[[Step], None]:
        """What computes steps between both neighbours."""
        left, right = self._connected(own)
        left.most_data_bytes = 4 * part.stage.width * part.most_tokens
        echo_link(left)
        self._link.send(Connected(measure_link(right)))
        return partial(self._compute, part, left, right)

    def _compute(self, part: LoadedPart, left: Channel, right: Channel, step: Step) -> None:
        assert self._assignment is not None
        for command in step.commands:
            part.stage.run(command)
        rows = sum(each.count for each in step.sequences)
        x = receive_hidden(left, step.number, (rows, part.stage.width))
        out = part.stage.compute(step, x)
        if self._assignment.rank < self._assignment.world - 1:
            send_hidden(right, step.number, out)
        elif step.wanted:
            send_hidden(right, step.number, out[step.wanted])

    def _connected(self, own: Assignment) -> tuple[Channel, Channel]:
        """The connections to both neighbours. The head is the neighbour of the first and last."""
        settings, connect = self._settings, self._link.take(Connect)
        right = dial(connect.right or settings.address, settings.secret)
        self._neighbours.append(right)
        right.send(Attach(own.rank, "left"))
        if own.rank == 1:
            left = dial(settings.address, settings.secret)
            self._neighbours.append(left)
            left.send(Attach(own.rank, "right"))
        else:
            left, attach = self._attached()
            if attach != Attach(own.rank - 1, "left"):
                raise Damaged(f"{attach} is not from the left neighbour")
        return left, right

    def _attached(self) -> tuple[Channel, Attach]:
        """The next connection of another worker."""
        channel = self._listener.arrived.get(timeout=SILENCE_S)
        assert channel is not None
        self._neighbours.append(channel)
        attach, _ = channel.receive()
        if not isinstance(attach, Attach):
            raise Damaged(f"{attach} is not from another worker")
        return channel, attach

    def _reason(self, error: Exception) -> MrsError:
        """Why a neighbour's connection has ended: what the head says, or else the error."""
        reason = self._link.reason(SILENCE_S + 1)
        if reason is not None:
            return reason
        return PeerFailed("the connection to a neighbour has ended", where=str(error))

    def _report(self, error: Exception) -> None:
        """Tell the head why this worker cannot go on."""
        rank = self._assignment.rank if self._assignment else 0
        where = f"rank {rank} ({self._settings.name or socket.gethostname()})"
        text = str(error) if isinstance(error, MrsError) else f"{type(error).__name__}: {error}"
        code = error.exit_code if isinstance(error, MrsError) else ExitCode.PEER_FAILED
        try:
            self._link.channel.send(Failed(f"{where}, {self._link.doing}: {text}", int(code)))
        except OSError:
            return

    def _on_end(self, link: Link, error: MrsError) -> None:
        """The head has gone: wake up whoever waits for a neighbour, and end a step that hangs."""
        for channel in self._neighbours:
            channel.close()
        if not self._settings.once or isinstance(error, RejoinAsked):
            return
        if not self._is_closed.wait(_LAST_STEP_S):
            import sys

            if not isinstance(error, HeadLeft):
                sys.stderr.write(f"mrs: error: {error}\n")
                sys.stderr.flush()
            os._exit(error.exit_code)


def _join(settings: WorkerSettings, port: int, loaded: str) -> Join:
    from mrs.devices.cpu_path import cpu_path
    from mrs.devices.probe import probe_devices

    device = own_device(probe_devices())
    name = settings.name or socket.gethostname()
    return Join(name, cpu_path(), device, port, settings.rank, os.getpid(), loaded)


def own_device(devices: Sequence[Device]) -> DeviceReport:
    """The report of the device that a rank uses, the first."""
    from mrs.devices.bandwidth import bandwidth_of, with_bandwidth

    first = with_bandwidth(devices)[0]
    return DeviceReport(first.label, first.name, first.available_bytes, bandwidth_of(first))

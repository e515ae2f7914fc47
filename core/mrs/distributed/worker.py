"""A worker: joins a head, loads its layers, and computes them until the head leaves."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Callable
from ipaddress import ip_address
from queue import Empty
from typing import Literal, NamedTuple

from mrs.distributed.access import Access, ModelDiffers, NotAllowed
from mrs.distributed.device_reports import own_device
from mrs.distributed.group_meeting import follow_group, lead_group, measure_sum
from mrs.distributed.link_speed import echo_link, measure_link
from mrs.distributed.loaded_part import LoadedPart, NewPlanner, load_assigned
from mrs.distributed.model_part import require_consistent
from mrs.distributed.protocol.channel import GREETING_BYTES, Channel, Damaged
from mrs.distributed.protocol.failures import (
    CONNECT_LIMIT_S,
    LOAD_LIMIT_S,
    SILENCE_S,
    STEP_LIMIT_S,
    HeadLeft,
    PeerFailed,
    RejoinAsked,
    words_for,
)
from mrs.distributed.protocol.handshake import FirstMessages, Listener, NotGreeted, dial
from mrs.distributed.protocol.link import Link
from mrs.distributed.protocol.messages import (
    Assignment,
    Attach,
    Connect,
    Connected,
    Failed,
    Join,
    OfNeighbour,
    Ready,
    Step,
)
from mrs.distributed.worker_steps import WorkerSteps
from mrs.errors import DoesNotFit, ExitCode, MrsError, NotReadable, shortened

_DIAL_AGAIN_S = 0.3
#: So often an address may accept a connection and say nothing.
_MOST_SILENT = 2
#: After the head is lost, a step that does not end is not waited for any longer.
_LAST_STEP_S = 1.5
#: What a head is told of a part that cannot be loaded: other errors quote files of this machine.
_TOLD = (NotAllowed, ModelDiffers, DoesNotFit)
Say = Callable[[str], None]


class WorkerSettings(NamedTuple):
    """How to join: `rank` 0 lets the head choose.

    `access` is what heads may have this worker load: without it anything, and they are told of
    errors in files. With `once` the worker ends when the head leaves; otherwise it keeps its
    weights for the next.
    A worker with a `parent_pid` was started by the head itself, and waits for no other.
    """

    address: tuple[str, int]
    secret: bytes
    once: bool = False
    rank: int = 0
    access: Access | None = Access()
    name: str = ""
    parent_pid: int = 0


def run_worker(settings: WorkerSettings, say: Say, new_planner: NewPlanner) -> None:
    """Serve heads one after another. Raises MrsError if none can be found.

    What goes wrong with a head ends a worker that is for `once`. Others go on with the next one,
    whatever this one has sent.
    """
    part: LoadedPart | None = None
    asked: RejoinAsked | None = None
    has_met = False
    tell = _without_repeats(say)
    while True:
        channel, session = _dialed(settings, tell, asked, has_met=has_met), None
        asked, has_met = None, True
        try:
            session = _Session(settings, channel)
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
        except Exception as error:
            if settings.once:
                raise
            tell(f"error: {words_for(error)}")
            time.sleep(_DIAL_AGAIN_S)
        finally:
            channel.close()
            if session is not None:
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


def _dialed(
    settings: WorkerSettings, say: Say, asked: RejoinAsked | None, *, has_met: bool
) -> Channel:
    """A connection to the head, which may start later.

    A worker that ends with its head waits only as long as the head does that has `asked` for it.
    One that `has_met` no head there yet may have the address of another program.
    """
    host, port = settings.address
    is_told, since_s, silent = False, time.monotonic(), 0
    limit_s = asked.within_s + SILENCE_S if asked is not None and settings.once else None
    while True:
        if settings.parent_pid and os.getppid() != settings.parent_pid:
            raise PeerFailed("the head has ended before this worker has joined it")
        try:
            return dial(settings.address, settings.secret)
        except OSError as error:
            waited_s = time.monotonic() - since_s
            silent += isinstance(error, NotGreeted)
            if silent == _MOST_SILENT and not has_met:
                raise PeerFailed(
                    f"who listens at {host}:{port} does not answer as a head",
                    where=f"since {waited_s:.0f} s",
                    hint="it is stopped, or another program has the port: give the head another "
                    "one with --listen, and this worker the same with --join",
                ) from None
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
        self._first_messages = FirstMessages(self._listener)
        self._neighbours: list[Channel] = []
        self._is_closed, self._has_ended = threading.Event(), threading.Event()
        host, port = settings.address
        self._link = Link(channel, f"the head at {host}:{port} (rank 0)", self._on_end)
        self._assignment: Assignment | None = None

    def join(self, loaded: str) -> Assignment:
        """Get an assignment; `loaded` is the `plan_hash` of the one whose weights there are."""
        self._link.doing = "while waiting for an assignment"
        self._link.send(_join(self._settings, self._listener.address[1], loaded))
        self._assignment = assignment = self._link.take(Assignment)
        try:
            require_consistent(assignment)
        except Damaged as error:
            self._report(error)
            raise
        return assignment

    def load(self, assignment: Assignment, new_planner: NewPlanner) -> LoadedPart:
        """Load the layers of an assignment. Raises MrsError."""
        self._link.doing = f"while loading layers {assignment.first} to {assignment.end - 1}"
        try:
            return load_assigned(assignment, self._settings.access, new_planner)
        except Exception as error:
            is_told = self._settings.access is None or isinstance(error, _TOLD)
            self._report(error if is_told else NotReadable("its own log says why"))
            raise

    def serve(self, part: LoadedPart, say: Say) -> None:
        """Compute steps until the link ends. Raises HeadLeft, PeerFailed or another MrsError."""
        own = self._assignment
        assert own is not None
        try:
            self._link.send(Ready(part.weight_bytes, part.stage.cache_infos))
        except PeerFailed as error:  # the head may have said why while the weights were loaded
            raise self._link.reason(SILENCE_S + 1) or error from error
        share = "a share of " if own.group_size > 1 else ""
        say(f"rank {own.rank} has {share}layers {own.first} to {own.end - 1}")
        try:
            compute = self._connected(part, own).compute
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

    def _connected(self, part: LoadedPart, own: Assignment) -> WorkerSteps:
        """Connect with the ranks that share the layers, and with both neighbours."""
        self._link.doing = "while connecting with other ranks"
        connect, first = self._link.take(Connect, LOAD_LIMIT_S), own.rank - own.place
        _require_addresses(connect, own)
        group = {n: self._dial(each, own.rank, "group") for n, each in enumerate(connect.group)}
        left = right = None
        if own.has_neighbours:
            right = self._dial(connect.right, own.rank, "left")
            if own.rank == own.group_size:  # the head has no address for its right neighbour
                left = self._dial(None, own.rank, "right")
        later = own.group_size - 1 - own.place + (own.has_neighbours and left is None)
        for _ in range(later):
            channel, attach = self._attached()
            if attach == Attach(own.rank - own.group_size, "left"):
                left = channel
            elif attach.side == "group" and own.rank < attach.rank < first + own.group_size:
                group[attach.rank - first] = channel
            else:
                raise Damaged(f"{attach} is not from a neighbour")
        self._listener.close()  # nobody else is to come
        self._measure(part, own, group, left, right)
        for channel in filter(None, (left, right)):
            channel.set_limit(STEP_LIMIT_S)
        return WorkerSteps(part, own, left, right)

    def _measure(
        self,
        part: LoadedPart,
        own: Assignment,
        peers: dict[int, Channel],
        left: Channel | None,
        right: Channel | None,
    ) -> None:
        """Join the group, and measure its sums and the link to the right neighbour in turn."""
        group = None
        if own.group_size > 1:
            if own.place:
                group = follow_group(own.place, peers, part.device)
            else:
                group = lead_group(peers, part.device)
        part.group.now = group
        if left is not None:
            echo_link(left)
        sum_s = 0.0 if group is None else measure_sum(group, part.stage.width)
        self._link.send(Connected(None if right is None else measure_link(right), sum_s))

    def _dial(
        self, address: tuple[str, int] | None, rank: int, side: Literal["left", "right", "group"]
    ) -> Channel:
        """A connection to another rank; without an address to the head."""
        channel = self._kept(dial(address or self._settings.address, self._settings.secret))
        channel.set_limit(CONNECT_LIMIT_S)
        channel.name = f"{channel.peer_host}, a neighbour of rank {rank}"
        channel.send(Attach(rank, side))
        if side != "group":
            channel.expect(OfNeighbour, GREETING_BYTES)
        return channel

    def _kept(self, channel: Channel) -> Channel:
        """A connection that ends with the link to the head."""
        self._neighbours.append(channel)
        if self._has_ended.is_set():
            channel.close()
        return channel

    def _attached(self) -> tuple[Channel, Attach]:
        """The next connection of another worker. Raises EOFError, OSError and Damaged."""
        limit_s = 2 * SILENCE_S  # of a worker that does not answer the head knows earlier
        try:
            found = self._first_messages.next(limit_s)
        except Empty:
            raise TimeoutError(f"another worker has not connected within {limit_s:g} s") from None
        if found is None:
            raise EOFError
        channel, attach = self._kept(found[0]), found[1]
        if not isinstance(attach, Attach):
            raise Damaged(f"{type(attach).__name__} is not from another worker")
        channel.set_limit(CONNECT_LIMIT_S)
        channel.name = f"rank {attach.rank}"
        if attach.side != "group":
            channel.expect(OfNeighbour, GREETING_BYTES)
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
        code = error.exit_code if isinstance(error, MrsError) else ExitCode.PEER_FAILED
        text = f"{where}, {self._link.doing}: {words_for(error)}"
        try:
            self._link.channel.send(Failed(shortened(text, 2000), int(code)))
        except OSError:
            return

    def _on_end(self, link: Link, error: MrsError) -> None:
        """The head has gone: wake up whoever waits for a neighbour, and end a step that hangs."""
        self._has_ended.set()
        self._listener.close()
        for channel in self._neighbours:
            channel.close()
        if not self._settings.once or isinstance(error, RejoinAsked):
            return
        if not self._is_closed.wait(_LAST_STEP_S):
            import sys

            try:
                if not isinstance(error, HeadLeft):
                    sys.stderr.write(f"mrs: error: {error}\n")
                    sys.stderr.flush()
            finally:  # also if nobody reads what it says
                os._exit(error.exit_code)


def _require_addresses(connect: Connect, own: Assignment) -> None:
    """Raises Damaged unless there is one for each connection, of a machine by its number."""
    is_wrong = own.has_neighbours and own.is_last != (connect.right is None)
    if len(connect.group) != own.place or is_wrong:
        text = "a Connect's 'group' or 'right' contradicts the assignment"
        raise Damaged(text, where=f"{len(connect.group)} addresses for {own.place}")
    for host, port in filter(None, (*connect.group, connect.right)):
        try:
            ip_address(host)
        except ValueError:
            raise Damaged("a Connect has a host that is no address", where=host) from None
        if not port:
            raise Damaged("a Connect has an address without a port", where=host)


def _join(settings: WorkerSettings, port: int, loaded: str) -> Join:
    from mrs.devices.cpu_path import cpu_path
    from mrs.devices.probe import probe_devices

    device = own_device(probe_devices())
    name = shortened(settings.name or socket.gethostname(), 64)
    return Join(name, cpu_path(), device, port, settings.rank, os.getpid(), loaded)

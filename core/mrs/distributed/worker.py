"""A worker: joins a coordinator, loads its layers, and computes them until that one leaves."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address
from queue import Empty
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from mrs.distributed.access import Access, ModelDiffers, NotAllowed
from mrs.distributed.checked_step import CheckedImage, CheckedStep
from mrs.distributed.pipeline import echo_link, measure_link, receive_hidden, send_hidden
from mrs.distributed.placement import device_report
from mrs.distributed.process_group import follow_group, lead_group, measure_sum
from mrs.distributed.protocol.channel import GREETING_BYTES, Channel, Damaged
from mrs.distributed.protocol.failures import (
    CONNECT_LIMIT_S,
    LOAD_LIMIT_S,
    SILENCE_S,
    STEP_LIMIT_S,
    CoordinatorLeft,
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
from mrs.distributed.shard import require_consistent
from mrs.distributed.stage import LoadedShard, NewPlanner, load_assigned
from mrs.errors import BadIndex, DoesNotFit, ExitCode, MrsError, NotReadable, shortened
from mrs.model.batch import ForwardBatch, ImageFeatures

_DIAL_AGAIN_S = 0.3
#: So often an address may accept a connection and say nothing.
_MOST_SILENT = 2
#: After the coordinator is lost, a step that does not end is not waited for any longer.
_LAST_STEP_S = 1.5
#: What a coordinator is told of a shard that cannot be loaded: others quote files of this machine.
_TOLD = (NotAllowed, ModelDiffers, DoesNotFit)
Say = Callable[[str], None]


class WorkerSettings(NamedTuple):
    """How to join: `rank` 0 lets the coordinator choose.

    `access` is what coordinators may have this worker load: without it anything, and they are told
    of errors in files. With `once` the worker ends when the coordinator leaves; otherwise it keeps
    its weights for the next.
    A worker with a `parent_pid` was started by the coordinator itself, and waits for no other.
    """

    address: tuple[str, int]
    secret: bytes
    once: bool = False
    rank: int = 0
    access: Access | None = Access()
    name: str = ""
    parent_pid: int = 0


def run_worker(settings: WorkerSettings, say: Say, new_planner: NewPlanner) -> None:
    """Serve coordinators one after another. Raises MrsError if none can be found.

    What goes wrong with a coordinator ends a worker that is for `once`. Others go on with the next
    one, whatever this one has sent.
    """
    shard: LoadedShard | None = None
    asked: RejoinAsked | None = None
    has_met = False
    tell = _without_repeats(say)
    while True:
        channel, session = _dialed(settings, tell, asked, has_met=has_met), None
        asked, has_met = None, True
        try:
            session = _Session(settings, channel)
            assignment = session.join(shard.plan_hash if shard is not None else "")
            if shard is None or shard.plan_hash != assignment.plan_hash:
                shard = None
                gc.collect()  # frees other weights: the error that ended their session has them
                shard = session.load(assignment, new_planner)
            session.serve(shard, say)
        except CoordinatorLeft:
            if settings.once:
                return
            say("the coordinator has left; the weights stay loaded for the next one")
        except RejoinAsked as error:
            asked = error
            say(f"{error}; joining the coordinator again")
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
    """Says nothing twice in a row: a coordinator that has all workers is dialed again and again."""
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
    """A connection to the coordinator, which may start later.

    A worker that ends with its coordinator waits only as long as the one does that has `asked` for
    it. One that `has_met` none there yet may have the address of another program.
    """
    host, port = settings.address
    is_told, since_s, silent = False, time.monotonic(), 0
    limit_s = asked.within_s + SILENCE_S if asked is not None and settings.once else None
    while True:
        if settings.parent_pid and os.getppid() != settings.parent_pid:
            raise PeerFailed("the coordinator has ended before this worker has joined it")
        try:
            return dial(settings.address, settings.secret)
        except OSError as error:
            waited_s = time.monotonic() - since_s
            silent += isinstance(error, NotGreeted)
            if silent == _MOST_SILENT and not has_met:
                raise PeerFailed(
                    f"who listens at {host}:{port} does not answer as a coordinator",
                    where=f"since {waited_s:.0f} s",
                    hint="it is stopped, or another program has the port: give the coordinator "
                    "another one with --listen, and this worker the same with --join",
                ) from None
            if limit_s is not None and waited_s > limit_s:
                raise PeerFailed(
                    f"{asked}; the coordinator does not answer since {waited_s:.0f} s"
                ) from None
            if not is_told and waited_s > 2 * _DIAL_AGAIN_S:
                reason = error.strerror or str(error)
                say(f"waiting for a coordinator at {host}:{port} ({reason})")
                is_told = True
            time.sleep(_DIAL_AGAIN_S)


class _Session:
    """One coordinator's use of this worker."""

    def __init__(self, settings: WorkerSettings, channel: Channel) -> None:
        self._settings = settings
        self._listener = Listener((channel.own_host, 0), settings.secret)
        self._first_messages = FirstMessages(self._listener)
        self._neighbours: list[Channel] = []
        self._is_closed, self._has_ended = threading.Event(), threading.Event()
        host, port = settings.address
        self._link = Link(channel, f"the coordinator at {host}:{port} (rank 0)", self._on_end)
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

    def load(self, assignment: Assignment, new_planner: NewPlanner) -> LoadedShard:
        """Load the layers of an assignment. Raises MrsError."""
        self._link.doing = f"while loading layers {assignment.first} to {assignment.end - 1}"
        try:
            return load_assigned(assignment, self._settings.access, new_planner)
        except Exception as error:
            is_told = self._settings.access is None or isinstance(error, _TOLD)
            self._report(error if is_told else NotReadable("its own log says why"))
            raise

    def serve(self, shard: LoadedShard, say: Say) -> None:
        """Compute steps until the link ends. Raises CoordinatorLeft or another MrsError."""
        assignment = self._assignment
        assert assignment is not None
        try:
            self._link.send(Ready(shard.weight_bytes, shard.stage.cache_infos))
        except PeerFailed as error:  # the coordinator may have said why meanwhile
            raise self._link.reason(SILENCE_S + 1) or error from error
        of = "a shard of " if assignment.group_size > 1 else ""
        layers = f"layers {assignment.first} to {assignment.end - 1}"
        say(f"rank {assignment.rank} has {of}{layers}")
        try:
            compute = self._connected(shard, assignment).compute
            while True:
                step = self._link.take(Step)
                self._link.doing = f"in step {step.number}"
                compute(step)
                self._link.doing = f"after step {step.number}"
        except (CoordinatorLeft, PeerFailed, RejoinAsked):
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

    def _connected(self, shard: LoadedShard, assignment: Assignment) -> WorkerSteps:
        """Connect with the ranks that share the layers, and with both neighbours."""
        self._link.doing = "while connecting with other ranks"
        connect = self._link.take(Connect, LOAD_LIMIT_S)
        _require_addresses(connect, assignment)
        rank, size, place = assignment.rank, assignment.group_size, assignment.place
        first, last = rank - place, rank - place + size - 1
        addresses = enumerate(connect.group)
        group = {n: self._dial(address, rank, "group") for n, address in addresses}
        left = right = None
        if assignment.has_neighbours:
            right = self._dial(connect.right, rank, "left")
            if rank == size:  # the coordinator has no address for its right neighbour
                left = self._dial(None, rank, "right")
        for _ in range(last - rank + (assignment.has_neighbours and left is None)):
            channel, attach = self._attached()
            if attach == Attach(rank - size, "left"):
                left = channel
            elif attach.side == "group" and rank < attach.rank <= last:
                group[attach.rank - first] = channel
            else:
                raise Damaged(f"{attach} is not from a neighbour")
        self._listener.close()  # nobody else is to come
        self._measure(shard, assignment, group, left, right)
        for channel in filter(None, (left, right)):
            channel.set_limit(STEP_LIMIT_S)
        return WorkerSteps(shard, assignment, left, right)

    def _measure(
        self,
        shard: LoadedShard,
        assignment: Assignment,
        peers: dict[int, Channel],
        left: Channel | None,
        right: Channel | None,
    ) -> None:
        """Join the group, and measure its sums and the link to the right neighbour in turn."""
        group = None
        if assignment.group_size > 1:
            if assignment.place:
                group = follow_group(assignment.place, peers, shard.device)
            else:
                group = lead_group(peers, shard.device)
        shard.group.current = group
        if left is not None:
            echo_link(left)
        sum_s = 0.0 if group is None else measure_sum(group, shard.stage.width)
        self._link.send(Connected(None if right is None else measure_link(right), sum_s))

    def _dial(
        self, address: tuple[str, int] | None, rank: int, side: Literal["left", "right", "group"]
    ) -> Channel:
        """A connection to another rank; without an address to the coordinator."""
        channel = self._kept(dial(address or self._settings.address, self._settings.secret))
        channel.set_limit(CONNECT_LIMIT_S)
        channel.name = f"{channel.peer_host}, a neighbour of rank {rank}"
        channel.send(Attach(rank, side))
        if side != "group":
            channel.expect(OfNeighbour, GREETING_BYTES)
        return channel

    def _kept(self, channel: Channel) -> Channel:
        """A connection that ends with the link to the coordinator."""
        self._neighbours.append(channel)
        if self._has_ended.is_set():
            channel.close()
        return channel

    def _attached(self) -> tuple[Channel, Attach]:
        """The next connection of another worker. Raises EOFError, OSError and Damaged."""
        limit_s = 2 * SILENCE_S  # of a worker that does not answer the coordinator knows earlier
        try:
            arrived = self._first_messages.next(limit_s)
        except Empty:
            raise TimeoutError(f"another worker has not connected within {limit_s:g} s") from None
        if arrived is None:
            raise EOFError
        channel, attach = self._kept(arrived[0]), arrived[1]
        if not isinstance(attach, Attach):
            raise Damaged(f"{type(attach).__name__} is not from another worker")
        channel.set_limit(CONNECT_LIMIT_S)
        channel.name = f"rank {attach.rank}"
        if attach.side != "group":
            channel.expect(OfNeighbour, GREETING_BYTES)
        return channel, attach

    def _reason(self, error: Exception) -> MrsError:
        """Why a neighbour's connection has ended: what the coordinator says, or else the error."""
        reason = self._link.reason(SILENCE_S + 1)
        if reason is not None:
            return reason
        return PeerFailed("the connection to a neighbour has ended", where=str(error))

    def _report(self, error: Exception) -> None:
        """Tell the coordinator why this worker cannot go on."""
        rank = self._assignment.rank if self._assignment else 0
        where = f"rank {rank} ({self._settings.name or socket.gethostname()})"
        code = error.exit_code if isinstance(error, MrsError) else ExitCode.PEER_FAILED
        text = f"{where}, {self._link.doing}: {words_for(error)}"
        try:
            self._link.channel.send(Failed(shortened(text, 2000), int(code)))
        except OSError:
            return

    def _on_end(self, link: Link, error: MrsError) -> None:
        """The coordinator has gone: wake up who waits for a neighbour, end a step that hangs."""
        self._has_ended.set()
        self._listener.close()
        for channel in self._neighbours:
            channel.close()
        if not self._settings.once or isinstance(error, RejoinAsked):
            return
        if not self._is_closed.wait(_LAST_STEP_S):
            import sys

            try:
                if not isinstance(error, CoordinatorLeft):
                    sys.stderr.write(f"mrs: error: {error}\n")
                    sys.stderr.flush()
            finally:  # also if nobody reads what it says
                os._exit(error.exit_code)


def _require_addresses(connect: Connect, assignment: Assignment) -> None:
    """Raises Damaged unless there is one for each connection, of a machine by its number."""
    is_wrong = assignment.has_neighbours and assignment.is_last != (connect.right is None)
    if len(connect.group) != assignment.place or is_wrong:
        text = "a Connect's 'group' or 'right' contradicts the assignment"
        raise Damaged(text, where=f"{len(connect.group)} addresses for {assignment.place}")
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

    device = device_report(probe_devices())
    name = shortened(settings.name or socket.gethostname(), 64)
    return Join(name, cpu_path(), device, port, settings.rank, os.getpid(), loaded)


class WorkerSteps:
    """Computes steps that the coordinator describes.

    | rank of a stage | the first stage    | later stages                                       |
    | --------------- | ------------------ | -------------------------------------------------- |
    | first           | is the coordinator | receives from `left`, broadcasts, sends to `right` |
    | others          | look up tokens     | get what the first one has received                |
    """

    def __init__(
        self,
        shard: LoadedShard,
        assignment: Assignment,
        left: Channel | None,
        right: Channel | None,
    ) -> None:
        self._shard, self._assignment = shard, assignment
        self._left, self._right = left, right

    @torch.inference_mode()
    def compute(self, step: Step) -> None:
        """Compute a step, after its commands.

        Raises EOFError and OSError if another process ends, and Damaged.
        """
        stage = self._shard.stage
        for command in step.commands:
            stage.run(command)
        checked = stage.checked(step)
        try:
            out = self._computed(checked, stage.batch(checked))
        except BadIndex as error:
            raise Damaged(error.what, where=error.where) from error
        self._pass_on(checked, out)

    def _computed(self, step: CheckedStep, batch: ForwardBatch) -> Tensor:
        if self._assignment.is_first:
            batch, x = self._first(step, batch)
        else:
            x = self._received(step)
        return self._shard.stage.compute(step, batch, x)

    def _first(self, step: CheckedStep, batch: ForwardBatch) -> tuple[ForwardBatch, Tensor]:
        """The batch with all that the coordinator's has, and what the first layer reads."""
        decoder = self._shard.decoder
        assert decoder is not None
        assert step.token_ids is not None
        images = tuple(map(self._image, step.images))
        batch = replace(batch, token_ids=torch.from_numpy(step.token_ids), images=images)
        batch = decoder.with_layer_inputs(batch)
        return batch, decoder.first_states(batch)

    def _image(self, image: CheckedImage) -> ImageFeatures:
        """The features of an image, from rank 0."""
        group = self._shard.group.current
        assert group is not None
        features = group.broadcast(torch.empty(len(image.rows), image.width))
        return ImageFeatures(torch.from_numpy(image.rows), features)

    def _received(self, step: CheckedStep) -> Tensor:
        shape, group = (step.tokens, self._shard.stage.width), self._shard.group.current
        if self._left is None:
            x = torch.empty(shape)
        else:
            x = receive_hidden(self._left, step.number, shape)
        return x if group is None else group.broadcast(x)

    def _pass_on(self, step: CheckedStep, out: Tensor) -> None:
        decoder, is_last = self._shard.decoder, self._assignment.is_last
        if self._right is not None and not is_last:
            send_hidden(self._right, step.number, out)
        elif not step.wanted:
            return
        elif self._right is not None:
            send_hidden(self._right, step.number, out[step.wanted])
        elif decoder is not None and not is_last:
            decoder.finish_broadcast(len(step.wanted), step.scored)
        elif decoder is not None:
            decoder.finish(out[step.wanted], step.scored)

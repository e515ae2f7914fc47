"""The coordinator, rank 0: workers join it, it numbers them, and watches over them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import msgspec

from mrs.distributed.protocol.channel import Channel
from mrs.distributed.protocol.failures import (
    CONNECT_LIMIT_S,
    SILENCE_S,
    ClusterRefused,
    PeerFailed,
    start_thread,
)
from mrs.distributed.protocol.handshake import MOST_WAITING, FirstMessages, Listener
from mrs.distributed.protocol.link import FROM_WORKER, Link
from mrs.distributed.protocol.messages import (
    Assignment,
    Attach,
    Failed,
    Join,
    LayerCacheInfo,
    Message,
)
from mrs.errors import ExitCode, MrsError, shortened

_logger = logging.getLogger(__name__)
_SAY_AGAIN_S = 30.0
_POLL_S = 0.2
#: How often strangers who were refused are spoken of.
_REFUSED_S = 1.0
#: How long one that is refused, or hangs, may take to read why it is let go.
_TELL_S = 1.0


class Arrivals:
    """Sorts the peers of a listener by their first message, until the listener is closed."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.joining: SimpleQueue[tuple[Channel, Join]] = SimpleQueue()
        self.attaching: SimpleQueue[tuple[Channel, Attach]] = SimpleQueue()
        self._workers: int | None = None
        start_thread("arrivals", self._sort, lambda error: self.close())

    def open(self) -> None:
        """Let workers join, as at the start."""
        self._workers = None

    def complete(self, workers: int) -> None:
        """All `workers` have joined: refuse further ones.

        Neighbours attach later. Connections of them that are there already are from before a
        failure.
        """
        self._workers = workers
        with suppress(Empty):
            while True:
                self._refuse(self.joining.get_nowait()[0])
        with suppress(Empty):
            while True:
                self.attaching.get_nowait()[0].close()

    def close(self) -> None:
        self.listener.close()

    def _sort(self) -> None:
        first_messages = FirstMessages(self.listener)
        while (arrived := first_messages.next()) is not None:
            channel, message = arrived
            if isinstance(message, Attach) and self.attaching.qsize() < MOST_WAITING:
                self.attaching.put((channel, message))
            elif isinstance(message, Join) and self._has_room():
                self.joining.put((channel, message))
            else:
                self._refuse(channel)

    def _has_room(self) -> bool:
        return self._workers is None and self.joining.qsize() < MOST_WAITING

    def _refuse(self, channel: Channel) -> None:
        _refuse(channel, f"the coordinator has all of its workers ({self._workers})")


def _refuse(channel: Channel, reason: str) -> None:
    _tell(channel, Failed(reason, int(ExitCode.USAGE)))
    channel.close()


def _tell(channel: Channel, message: Message) -> None:
    """Send without waiting long: the receiver may hang, or be gone."""
    with suppress(OSError):
        channel.set_timeout(_TELL_S)
        channel.send(message)


@dataclass
class Member:
    """A worker that has joined."""

    link: Link
    join: Join
    host: str
    rank: int = 0
    layers: range = range(0)
    caches: Sequence[LayerCacheInfo] = ()
    weight_bytes: int = 0

    @property
    def name(self) -> str:
        return f"rank {self.rank} ({self.join.name} at {self.host})"

    @property
    def machine(self) -> str:
        """The address of its machine; empty for that of the coordinator."""
        return "" if self.host == self.link.channel.own_host else self.host


class Coordinator:
    """The workers of one model until the first of them is lost, which ends it for all."""

    def __init__(
        self,
        arrivals: Arrivals,
        wait_limit_s: float | None,
        check: Callable[[], None],
        failure_message: Callable[[MrsError], Message],
        on_failure: Callable[[Coordinator, MrsError], None],
        *,
        is_local: bool,
    ) -> None:
        """`check` is called while it waits, and may raise.

        After a failure the other workers get `failure_message`, and `on_failure` is called in
        another thread.
        """
        self._arrivals = arrivals
        self._wait_limit_s = wait_limit_s
        self._check_others, self._is_local = check, is_local
        self._failure_message, self._on_failure = failure_message, on_failure
        self.members: list[Member] = []
        self.lost_member: Member | None = None
        self.failure: MrsError | None = None
        #: Connections that end when a worker is lost.
        self.neighbours: list[Channel] = []
        self._has_failed = threading.Event()
        self._lock = threading.Lock()
        self._is_closed = False

    def gather(self, count: int, loaded: Sequence[str] = ()) -> None:
        """Wait for `count` workers, and number them. Raises MrsError.

        One that has the weights of assignment n of those with the hashes `loaded` is rank n + 1.
        These say that workers gather again: one whose rank cannot be had is then refused, and
        does not end the replies of the others.
        """
        host, port = self._arrivals.listener.address
        since_s = reported_s = time.monotonic()
        refused_s = -_REFUSED_S
        while len(self.members) < count:
            self.check()
            with suppress(Empty):
                channel, join = self._arrivals.joining.get(timeout=_POLL_S)
                try:
                    self.members.append(self._joined(channel, join, count))
                except ClusterRefused as error:
                    if not loaded:
                        raise
                    _logger.warning("%s", error)
            now_s = time.monotonic()
            if now_s - refused_s >= _REFUSED_S and self._tell_of_refused():
                refused_s = now_s
            missing = f"{count - len(self.members)} of {count} workers at {host}:{port}"
            is_over = self._wait_limit_s is not None and now_s - since_s > self._wait_limit_s
            if is_over and len(self.members) < count:
                raise PeerFailed(
                    f"{missing} have not come within {self._wait_limit_s:g} s",
                    hint=f"start: mrs worker --join {host}:{port}",
                )
            is_due = now_s - reported_s > (_SAY_AGAIN_S if reported_s > since_s else 2.0)
            if is_due and not self._is_local and len(self.members) < count:
                reported_s = now_s
                _logger.warning("waiting for %s since %.0f s", missing, now_s - since_s)
        self._arrivals.complete(count)
        self._number(count, loaded)

    def assign(self, assignments: Sequence[Assignment]) -> None:
        """Tell each member which layers it loads."""
        for member, assignment in zip(self.members, assignments, strict=True):
            member.layers = range(assignment.first, assignment.end)
            member.link.doing = "while it loads its layers"
            member.link.send(assignment)

    def attached(self, count: int) -> dict[str | int, Channel]:
        """`count` connections, by their side or by the rank in this group. Raises MrsError.

        They end when a worker is lost.
        """
        attached: dict[str | int, Channel] = {}
        until_s = time.monotonic() + 2 * SILENCE_S
        while len(self.neighbours) < count:
            self.check()
            with suppress(Empty):
                channel, attach = self._arrivals.attaching.get(timeout=_POLL_S)
                channel.set_limit(CONNECT_LIMIT_S)
                channel.name = f"rank {attach.rank}"
                self.neighbours.append(channel)
                attached[attach.rank if attach.side == "group" else attach.side] = channel
            missing = count - len(self.neighbours)
            if time.monotonic() > until_s and missing:
                raise PeerFailed(f"{missing} of {count} connections are missing")
        return attached

    def reason(self, error: Exception) -> MrsError:
        """Why a step has failed: the failure of a worker, or else the error itself."""
        is_settled = isinstance(error, MrsError) and not isinstance(error, PeerFailed)
        if self._has_failed.wait(0 if is_settled else SILENCE_S + 1):
            assert self.failure is not None
            return self.failure
        if isinstance(error, MrsError):
            return error
        return PeerFailed("the connection to a neighbour has ended", where=str(error))

    def close(self, words: Message) -> None:
        """Let all workers go; if none has failed, they get these words."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        for member in self.members:
            if self.failure is None:
                _tell(member.link.channel, words)
            member.link.close()
        for channel in self.neighbours:
            channel.close()

    def check(self) -> None:
        """Raises MrsError if a worker is lost, or another process by the `check` given."""
        if self.failure is not None:
            raise self.failure
        if self._is_closed:
            raise PeerFailed("the coordinator was closed")
        self._check_others()

    def _tell_of_refused(self) -> bool:
        """Log one line about all strangers that were refused. Returns whether there were any."""
        refused, texts = self._arrivals.listener.refused, []
        while not refused.empty():
            texts.append(refused.get())
        if texts:
            more = f"; so were {len(texts) - 1} more" if len(texts) > 1 else ""
            _logger.warning("%s%s", texts[0], more)
        return bool(texts)

    def _joined(self, channel: Channel, join: Join, count: int) -> Member:
        """The worker that has joined. Raises ClusterRefused if it cannot have its rank."""
        join = msgspec.structs.replace(join, name=shortened(join.name, 64))
        who = f"the worker {join.name} at {channel.peer_host}"
        same_rank = [m.join.name for m in self.members if join.rank and m.rank == join.rank]
        refusal = None
        if same_rank:
            refusal = f"two workers are rank {join.rank}: {same_rank[0]} and {join.name}"
        elif join.rank > count:
            refusal = f"{who} asks for rank {join.rank}, and the last one is {count}"
        if refusal is not None:
            _refuse(channel, refusal)
            raise ClusterRefused(refusal, hint="give each worker a rank of its own")
        link = Link(channel, who, self._on_end, FROM_WORKER)
        link.doing = "while gathering workers"
        return Member(link, join, channel.peer_host, rank=join.rank)

    def _number(self, count: int, loaded: Sequence[str]) -> None:
        """Ranks from 1 on: those that were asked for, and the others by machine and arrival."""
        for rank, plan_hash in enumerate(loaded, 1):
            has_it = [m for m in self.members if m.join.loaded == plan_hash and not m.rank]
            if has_it and rank not in {member.rank for member in self.members}:
                has_it[0].rank = rank
        taken = {member.rank for member in self.members}
        free = [rank for rank in range(1, count + 1) if rank not in taken]
        machines = ["", *(member.machine for member in self.members)]
        # Neighbours on one machine need no network, and only these can share layers.
        self.members.sort(key=lambda member: machines.index(member.machine))
        for member in self.members:
            if not member.rank:
                member.rank = free.pop(0)
            member.link.who = member.name
        self.members.sort(key=lambda member: member.rank)

    def _on_end(self, link: Link, error: MrsError) -> None:
        with self._lock:
            if self._is_closed or self.failure is not None:
                return
            self.failure = error
        words = self._failure_message(error)
        for member in self.members:
            if member.link is link:
                self.lost_member = member
            else:
                _tell(member.link.channel, words)
                member.link.fail(error)
        self._has_failed.set()
        for channel in self.neighbours:
            channel.close()
        self._on_failure(self, error)

"""The head, rank 0: gathers workers, gives each some layers, and watches over them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from mrs.distributed.channel import Channel
from mrs.distributed.failures import SILENCE_S, ClusterRefused, PeerFailed
from mrs.distributed.link import Link
from mrs.distributed.local_ranks import LocalRanks
from mrs.distributed.meeting import Listener
from mrs.distributed.messages import (
    Assignment,
    Attach,
    Connect,
    Connected,
    ConnectGroup,
    Failed,
    Goodbye,
    Join,
    LayerCacheInfo,
    Message,
    Ready,
)
from mrs.errors import ExitCode, MrsError

if TYPE_CHECKING:
    from mrs.distributed.further_layers import RemoteLayers, RemoteRank
    from mrs.distributed.rank_group import RankGroup
    from mrs.distributed.shared_head import SharedRanks

_logger = logging.getLogger(__name__)
_SAY_AGAIN_S = 30.0
_POLL_S = 0.2
#: So long the workers of this machine may take to end after a failure.
_FAILED_END_S = 0.5


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


class Head:
    """The workers of one model. It is closed once; a failure of one worker ends it for all."""

    def __init__(
        self, listener: Listener, local: LocalRanks | None, wait_limit_s: float | None = None
    ) -> None:
        self._listener = listener
        self._local = local
        self._wait_limit_s = wait_limit_s
        self.members: list[Member] = []
        self._neighbours: list[Channel | RankGroup] = []
        self._joining: SimpleQueue[tuple[Channel, Join]] = SimpleQueue()
        self._attaching: SimpleQueue[tuple[Channel, Attach]] = SimpleQueue()
        self._is_complete = False
        self._failure: MrsError | None = None
        self._has_failed = threading.Event()
        self._lock = threading.Lock()
        self._is_closed = False
        #: Called in another thread with the first failure.
        self.on_failure: Callable[[MrsError], None] = lambda error: None
        threading.Thread(target=self._sort_arrivals, name="mrs-arrivals", daemon=True).start()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def gather(self, count: int) -> None:
        """Wait for `count` workers, and number them. Raises MrsError."""
        host, port = self._listener.address
        since_s = told_s = time.monotonic()
        while len(self.members) < count:
            self._check()
            with suppress(Empty):
                self.members.append(self._joined(*self._joining.get(timeout=_POLL_S)))
            while not self._listener.refused.empty():
                _logger.warning("%s", self._listener.refused.get())
            now_s = time.monotonic()
            missing = f"{count - len(self.members)} of {count} workers at {host}:{port}"
            if self._wait_limit_s is not None and now_s - since_s > self._wait_limit_s:
                raise PeerFailed(
                    f"{missing} have not come within {self._wait_limit_s:g} s",
                    hint=f"start: mrs worker --join {host}:{port}",
                )
            is_due = now_s - told_s > (_SAY_AGAIN_S if told_s > since_s else 2.0)
            if is_due and not self._local and len(self.members) < count:
                told_s = now_s
                _logger.warning("waiting for %s since %.0f s", missing, now_s - since_s)
        self._is_complete = True
        while not self._joining.empty():
            self._refuse(self._joining.get()[0])
        self._number(count)

    def assign(self, assignments: Sequence[Assignment]) -> None:
        """Tell each member which layers it loads."""
        for member, assignment in zip(self.members, assignments, strict=True):
            member.layers = range(assignment.first, assignment.end)
            member.link.doing = "while it loads its layers"
            member.link.send(assignment)

    def connect(self, most_bytes: int) -> RemoteLayers:
        """Wait until all have loaded their layers, and connect neighbours. Raises MrsError."""
        from mrs.distributed.further_layers import RemoteLayers

        ranks = self._loaded()
        for member, right in zip(self.members, [*self.members[1:], None], strict=True):
            address = None if right is None else (right.host, right.join.port)
            member.link.send(Connect(address))
        for member in self.members:
            member.link.take(Connected)
        attached = [self._attaching.get(timeout=SILENCE_S) for _ in range(2)]
        self._neighbours = [channel for channel, _ in attached]
        sides = {attach.side: channel for channel, attach in attached}
        sides["left"].most_data_bytes = most_bytes
        return RemoteLayers(ranks, sides["right"], sides["left"], self.reason)

    def connect_group(self) -> SharedRanks:
        """Wait until all have loaded their shares, and connect each with all. Raises MrsError."""
        from mrs.distributed.rank_group import RankGroup
        from mrs.distributed.shared_head import SharedRanks
        from mrs.distributed.shared_memory import SharedFile

        ranks = self._loaded()
        file = SharedFile(len(ranks) + 1)
        try:
            addresses = [(each.host, each.join.port) for each in self.members]
            for member in self.members:
                member.link.send(ConnectGroup(addresses, str(file.path)))
            for member in self.members:
                member.link.take(Connected)
            attached = [self._attaching.get(timeout=SILENCE_S) for _ in ranks]
            group = RankGroup(0, {attach.rank: channel for channel, attach in attached}, file.path)
        finally:
            file.remove()
        self._neighbours = [group]
        return SharedRanks(ranks, group, self.reason)

    def _loaded(self) -> list[RemoteRank]:
        """All ranks, once they have loaded their weights."""
        from mrs.distributed.further_layers import RemoteRank

        for member in self.members:
            ready = member.link.take(Ready)
            member.caches, member.weight_bytes = ready.caches, ready.weight_bytes
            member.link.doing = "before the first step"
        return [RemoteRank(each.link, each.layers, each.caches) for each in self.members]

    def reason(self, error: Exception) -> MrsError:
        """Why a step has failed: the failure of a worker, or else the error itself."""
        if self._has_failed.wait(0 if isinstance(error, MrsError) else SILENCE_S + 1):
            assert self._failure is not None
            return self._failure
        if isinstance(error, MrsError):
            return error
        return PeerFailed("the connection to a neighbour has ended", where=str(error))

    def close(self) -> None:
        """Let all workers go, and end those of this machine."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._listener.close()
        for member in self.members:
            if self._failure is None:
                self._tell(member, Goodbye())
            member.link.close()
        for channel in self._neighbours:
            channel.close()
        if self._local is not None:
            if self._failure is None:
                self._local.end()
            else:  # the one that has failed may hang
                self._local.end(_FAILED_END_S)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._local is not None:
            self._local.check()

    def _sort_arrivals(self) -> None:
        """Read the first message of each peer: it wants to join, or is a neighbour of the head."""
        while (channel := self._listener.arrived.get()) is not None:
            try:
                channel.set_timeout(SILENCE_S)
                message, _ = channel.receive()
                channel.set_timeout(None)
            except (OSError, EOFError, MrsError):
                channel.close()
                continue
            if isinstance(message, Attach):
                self._attaching.put((channel, message))
            elif isinstance(message, Join) and not self._is_complete:
                self._joining.put((channel, message))
            else:
                self._refuse(channel)

    def _refuse(self, channel: Channel) -> None:
        count = len(self.members)
        text = f"the head has all of its workers ({count})"
        with suppress(OSError):
            channel.send(Failed(text, int(ExitCode.USAGE)))
        channel.close()

    def _joined(self, channel: Channel, join: Join) -> Member:
        who = f"the worker {join.name} at {channel.peer_host}"
        link = Link(channel, who, self._on_end)
        member = Member(link, join, channel.peer_host, rank=join.rank)
        link.doing = "while gathering workers"
        for other in self.members:
            if join.rank and other.rank == join.rank:
                text = f"two workers are rank {join.rank}: {other.join.name} and {join.name}"
                self._tell(member, Failed(text, int(ExitCode.USAGE)))
                raise ClusterRefused(text, hint="give each worker a rank of its own")
        return member

    def _number(self, count: int) -> None:
        """Ranks from 1 on: those that were asked for, and the others in order of arrival."""
        free = [n for n in range(1, count + 1) if n not in {each.rank for each in self.members}]
        for member in self.members:
            if not member.rank:
                member.rank = free.pop(0)
            if member.rank > count:
                raise ClusterRefused(f"{member.name} is beyond the last rank, {count}")
            member.link.who = member.name
        self.members.sort(key=lambda each: each.rank)

    def _on_end(self, link: Link, error: MrsError) -> None:
        with self._lock:
            if self._is_closed or self._failure is not None:
                return
            self._failure = error
        for member in self.members:
            if member.link is not link:
                self._tell(member, Failed(str(error), int(error.exit_code)))
                member.link.fail(error)
        self._has_failed.set()
        for channel in self._neighbours:
            channel.close()
        self.on_failure(error)

    def _tell(self, member: Member, message: Message) -> None:
        """Send without waiting long: the member may be the one that hangs."""
        try:
            member.link.channel.set_timeout(1.0)
            member.link.channel.send(message)
        except OSError:
            _logger.debug("%s cannot be told", member.name)

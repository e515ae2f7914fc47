"""The workers of one model: gathered once, and with a limit for that again after a failure.

    gather, assign, connect  ->  steps  ->  a worker is lost  ->  gather, assign, connect  ->  ...

The first time is up to the caller. Later ones happen in a thread, with the same assignments, while
steps raise `CachesLost`: the caches of all processes are empty after that, so sequences go on with
their tokens computed again. A worker that still has the weights of an assignment gets it again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty
from typing import Any, Generic, TypeVar

from mrs.distributed.coordinator import Arrivals, Coordinator
from mrs.distributed.launch import LocalRanks, launched
from mrs.distributed.protocol.failures import (
    SILENCE_S,
    PeerFailed,
    PeerReported,
    start_thread,
    words_for,
)
from mrs.distributed.protocol.handshake import Listener, parse_address
from mrs.distributed.protocol.messages import Assignment, Failed, Goodbye, Message, Rejoin
from mrs.distributed.protocol.secret import find_secret, new_secret
from mrs.errors import MrsError
from mrs.model.caches_lost import CachesLost
from mrs.request import ClusterRequest

_logger = logging.getLogger(__name__)
#: After this many failures within this time there is no repair: a step may be what kills workers.
_MOST_REPAIRS, _REPAIRS_S = 5, 300.0
#: How long a step waits for new connections before aborted sequences may end.
_STEP_WAIT_S = 1.0
#: So long the workers of this machine may take to end after a failure.
_FAILED_END_S = 0.5
_Connections = TypeVar("_Connections")


class Rendezvous(Generic[_Connections]):
    """Gathers workers, also again after a failure; `coordinator` holds the current ones.

    With a `rejoin_limit_s` of 0 the first failure is the last.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        local: LocalRanks | None,
        count: int,
        wait_limit_s: float | None = None,
        rejoin_limit_s: float = 0.0,
    ) -> None:
        self._arrivals, self._local, self.count = arrivals, local, count
        self._rejoin_limit_s = rejoin_limit_s
        self._assignments: Sequence[Assignment] = ()
        self._connect: Callable[[Coordinator], _Connections] | None = None
        self._fresh: _Connections | None = None
        #: Set while steps can be computed, and once they never can be again.
        self._is_settled = threading.Event()
        self._failure: MrsError | None = None
        self._repairs_s: deque[float] = deque(maxlen=_MOST_REPAIRS)
        #: Since when workers gather again, and which of this machine's are still to join.
        self._since_s, self._survivors = 0.0, set[int]()
        self._lock = threading.Lock()
        self.is_closed = False
        #: Called in another thread with the failure that is not repaired.
        self.on_failure: Callable[[MrsError], None] = lambda error: None
        self.coordinator = self._new_coordinator(wait_limit_s, self._check_local)

    def gather(self) -> None:
        """Wait for all workers. Raises MrsError."""
        self.coordinator.gather(self.count)

    def assign(self, assignments: Sequence[Assignment]) -> None:
        self._assignments = assignments
        self.coordinator.assign(assignments)

    def connect(self, connect: Callable[[Coordinator], _Connections]) -> _Connections:
        """What `connect` makes of the workers now, and again after each repair. Raises MrsError."""
        connections = connect(self.coordinator)
        with self._lock:
            self._connect = connect
        self._is_settled.set()
        return connections

    def renewed(self) -> _Connections | None:
        """The connections that were made since the last call, if there are any.

        Raises CachesLost while they are being made, and the failure if that is in vain.
        """
        if not self._is_settled.wait(_STEP_WAIT_S):
            raise CachesLost
        if self._failure is not None:
            raise self._failure
        fresh, self._fresh = self._fresh, None
        return fresh

    def reason(self, error: Exception) -> Exception:
        """What a step raises that failed with `error`."""
        if self._connect is not None and (not self._is_settled.is_set() or self._fresh is not None):
            return CachesLost()
        coordinator = self.coordinator
        failure = coordinator.reason(error)
        if not self._is_repairable(failure):
            return failure
        if coordinator.failure is None:  # only a connection between two workers has ended
            self._on_failure(coordinator, failure)
        return CachesLost()

    def close(self, error: BaseException | None = None) -> None:
        """Let all workers go, because of this error if there is one; end those of this machine."""
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
        self._arrivals.close()
        has_failed = self.coordinator.failure is not None
        self.coordinator.close(_failed(error) if isinstance(error, MrsError) else Goodbye())
        if self._local is None:
            return
        if has_failed:  # the one that has failed may hang
            self._local.end(_FAILED_END_S)
        else:
            self._local.end()

    def _new_coordinator(self, limit_s: float | None, check: Callable[[], None]) -> Coordinator:
        is_local = self._local is not None
        return Coordinator(
            self._arrivals,
            limit_s,
            check,
            self._failure_message,
            self._on_failure,
            is_local=is_local,
        )

    def _check_local(self) -> None:
        if self._local is not None:
            self._local.check()

    def _is_repairable(self, error: MrsError) -> bool:
        """Whether the workers gather again after this error: nobody has reported a fault."""
        is_lost = isinstance(error, PeerFailed) and not isinstance(error, PeerReported)
        if not is_lost or not self._rejoin_limit_s or self._connect is None or self.is_closed:
            return False
        repairs = self._repairs_s
        is_often = len(repairs) == _MOST_REPAIRS and time.monotonic() - repairs[0] < _REPAIRS_S
        return not is_often and self._failure is None

    def _failure_message(self, error: MrsError) -> Message:
        return self._asked_to_rejoin(str(error)) if self._is_repairable(error) else _failed(error)

    def _asked_to_rejoin(self, text: str) -> Rejoin:
        """What lets workers come back; they may do so before the coordinator gathers."""
        self._arrivals.open()
        return Rejoin(text, self._rejoin_limit_s)

    def _on_failure(self, coordinator: Coordinator, error: MrsError) -> None:
        """In a thread of the coordinator's. While workers gather again, their thread takes care."""
        with self._lock:
            is_repairing = self._connect is not None and not self._is_settled.is_set()
            if coordinator is not self.coordinator or is_repairing:
                return
            is_repairable = self._is_repairable(error)
            if is_repairable:
                self._is_settled.clear()
                self._fresh = None
                self._repairs_s.append(time.monotonic())
        if is_repairable:
            start_thread("repair", partial(self._repair, error), partial(self._end_repair, error))
        else:
            self._give_up(error)

    def _repair(self, error: MrsError) -> None:
        until_s = time.monotonic() + self._rejoin_limit_s
        _logger.warning("%s; waiting up to %g s for a worker", error, self._rejoin_limit_s)
        while not self.is_closed:
            try:
                self._gather_again(until_s - time.monotonic())
                return
            except (PeerFailed, TimeoutError, Empty, OSError) as again:
                is_final = isinstance(again, PeerReported) or time.monotonic() > until_s
                if is_final and not self.is_closed:
                    failure = again if isinstance(again, PeerReported) else error
                    return self._give_up(_vain(failure, self._rejoin_limit_s))

    def _end_repair(self, error: MrsError, again: Exception) -> None:
        """Replies must not wait for workers when gathering these `again` has failed."""
        if not isinstance(again, MrsError):
            again = PeerFailed(f"{error}; gathering again has failed: {words_for(again)}")
        self._give_up(again)

    def _gather_again(self, limit_s: float) -> None:
        """Raises MrsError, TimeoutError and Empty."""
        assert self._connect is not None
        lost = self.coordinator
        lost.close(self._asked_to_rejoin("a worker is missing"))
        if self._local is not None and lost.lost_member is not None:
            self._local.kill(lost.lost_member.join.pid)
        coordinator = self._new_coordinator(max(limit_s, 0.0), self._revive)
        with self._lock:
            self.coordinator, self._since_s = coordinator, time.monotonic()
            self._survivors = set(self._local.pids if self._local is not None else ())
            if self.is_closed:
                return
        coordinator.gather(self.count, [assigned.plan_hash for assigned in self._assignments])
        coordinator.assign(self._assignments)
        fresh = self._connect(coordinator)
        with self._lock:
            if coordinator.failure is not None:
                raise coordinator.failure
            self._fresh = fresh
            self._is_settled.set()
        _logger.warning("all workers have joined again; replies go on")

    def _revive(self) -> None:
        """Start workers of this machine again that have ended, or hang."""
        if self._local is None:
            return
        if time.monotonic() - self._since_s > 2 * SILENCE_S:
            members = self.coordinator.members
            for pid in self._survivors - {member.join.pid for member in members}:
                self._local.kill(pid)
            self._survivors = set()
        self._local.revive()

    def _give_up(self, error: MrsError) -> None:
        with self._lock:
            self._failure = error
            is_closed = self.is_closed
        self._is_settled.set()
        if is_closed:
            return
        if self.coordinator.failure is None:  # those that have joined again wait in vain
            self.coordinator.close(_failed(error))
        self.on_failure(error)


def _failed(error: MrsError) -> Failed:
    return Failed(str(error), int(error.exit_code))


def _vain(error: MrsError, limit_s: float) -> MrsError:
    """The failure after which no worker has come back."""
    if isinstance(error, PeerReported):
        return error
    return PeerFailed(f"{error}; no worker has taken its place within {limit_s:g} s")


def meet(asked: ClusterRequest, cards: int = 0) -> Rendezvous[Any]:
    """Listens, and starts the workers of this machine if these are asked for.

    `cards` are those that the processes of this machine share out.
    """
    rank = launched()
    if rank is not None and not asked.workers and not asked.listen:
        listener = Listener((rank.host, 0), rank.secret())
        rank.publish(listener.address[1])
        return Rendezvous(Arrivals(listener), None, rank.world - 1, asked.wait_limit_s)
    address = parse_address(asked.listen or "127.0.0.1:0", "--listen")
    secret = new_secret() if asked.workers else find_secret(address[0])
    listener = Listener(address, secret)
    local: LocalRanks | None = None
    if asked.workers:
        local = LocalRanks(asked.workers, listener.address, secret, cards)
    count = asked.workers or asked.wait_for
    arrivals = Arrivals(listener)
    return Rendezvous(arrivals, local, count, asked.wait_limit_s, asked.rejoin_limit_s)

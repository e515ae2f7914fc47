"""Gathering again: connections from before a failure, and failures that nobody expects."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from clusters import SECRET, wait_until

from mrs.distributed.coordinator import Arrivals, Member
from mrs.distributed.protocol.failures import PeerFailed
from mrs.distributed.protocol.handshake import Listener, dial
from mrs.distributed.protocol.messages import Attach, DeviceReport, Failed, Goodbye, Join
from mrs.distributed.rendezvous import Rendezvous
from mrs.model.caches_lost import CachesLost

JOIN = Join("worker", "portable", DeviceReport("cpu", "CPU", 1 << 30, 1e9), port=1)


@pytest.fixture
def arrivals() -> Iterator[Arrivals]:
    made = Arrivals(Listener(("127.0.0.1", 0), SECRET))
    yield made
    made.close()


def test_neighbours_from_before_a_failure_are_dropped(arrivals: Arrivals) -> None:
    """They may come after workers gather again, and before these have joined."""
    arrivals.open()
    late = dial(arrivals.listener.address, SECRET)
    late.send(Attach(1, "right"))
    wait_until(lambda: not arrivals.attaching.empty())
    arrivals.complete(1)
    assert arrivals.attaching.empty()
    late.close()


def is_waiting(rendezvous: Rendezvous[int]) -> bool:
    try:
        rendezvous.renewed()
    except CachesLost:
        return True
    return False


def test_an_unexpected_failure_of_gathering_again_ends_replies(
    arrivals: Arrivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrs.distributed.rendezvous._STEP_WAIT_S", 0.01)
    failures: list[Exception] = []
    rendezvous: Rendezvous[int] = Rendezvous(arrivals, None, 1, rejoin_limit_s=60.0)
    rendezvous.on_failure = failures.append
    first = dial(arrivals.listener.address, SECRET)
    first.send(JOIN)
    rendezvous.gather()
    rendezvous.connect(lambda coordinator: 1)
    first.close()
    wait_until(lambda: is_waiting(rendezvous))
    second = dial(arrivals.listener.address, SECRET)
    second.send(JOIN)
    wait_until(lambda: bool(failures))  # there is no assignment for the worker
    with pytest.raises(PeerFailed, match="gathering again has failed: internal error: ValueError"):
        rendezvous.renewed()
    rendezvous.close()
    second.close()


@pytest.mark.parametrize(
    ("rank", "words"), [(1, "two workers are rank 1"), (3, "asks for rank 3, and the last one is")]
)
def test_a_rank_that_cannot_be_had_ends_no_replies(
    arrivals: Arrivals, rank: int, words: str
) -> None:
    """Workers gather again: who comes with a wrong rank is told, and another is waited for."""
    coordinator = Rendezvous(arrivals, None, 2).coordinator
    channels = [dial(arrivals.listener.address, SECRET) for _ in range(3)]
    for waiting, (channel, own) in enumerate(zip(channels, (1, rank, 2), strict=True), 1):
        channel.send(msgspec.structs.replace(JOIN, rank=own))
        wait_until(lambda: arrivals.joining.qsize() == waiting)  # noqa: B023
    coordinator.gather(2, ["a", "b"])
    assert [each.rank for each in coordinator.members] == [1, 2]
    told, _ = channels[1].receive()
    assert isinstance(told, Failed)
    assert words in told.text
    coordinator.close(Goodbye())
    for channel in channels:
        channel.close()


def test_workers_of_a_machine_have_neighbouring_ranks(arrivals: Arrivals) -> None:
    """Those of the coordinator's machine come first, by whichever of its addresses they joined."""

    def member(name: str, host: str, own_host: str) -> Member:
        link: Any = SimpleNamespace(channel=SimpleNamespace(own_host=own_host), who="")
        return Member(link, msgspec.structs.replace(JOIN, name=name), host)

    coordinator = Rendezvous(arrivals, None, 4).coordinator
    coordinator.members = [
        member("a", "10.0.0.9", "10.0.0.1"),
        member("b", "127.0.0.1", "127.0.0.1"),
        member("c", "10.0.0.9", "10.0.0.1"),
        member("d", "10.0.0.1", "10.0.0.1"),
    ]
    coordinator._number(4, [])
    assert [each.join.name for each in coordinator.members] == ["b", "d", "a", "c"]
    assert [each.rank for each in coordinator.members] == [1, 2, 3, 4]

"""When a worker frees its weights, and when it has them for the next head."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from clusters import SECRET

from mrs.distributed import worker
from mrs.distributed.protocol.channel import Channel
from mrs.distributed.protocol.failures import ClusterRefused
from mrs.distributed.protocol.handshake import Listener
from mrs.distributed.protocol.messages import (
    Assignment,
    Beat,
    DeviceReport,
    Goodbye,
    Join,
    Message,
    Ready,
    Rejoin,
)
from mrs.distributed.shard import plan_hash
from mrs.distributed.worker import WorkerSettings, run_worker

DEVICE = DeviceReport("cpu", "CPU", 1 << 30, 1e9)
Load = Callable[[Assignment], Any]


class Part:
    """Stands for the loaded layers."""

    weight_bytes = 0
    stage = SimpleNamespace(cache_infos=[])

    def __init__(self, assigned: Assignment) -> None:
        self.plan_hash = assigned.plan_hash


def assignment(sample: str) -> Assignment:
    given = Assignment(
        1, 2, b"", 1, 2, "F32", "F32", 1, 1, 1, 1, None, "", sample, group_size=1, plan_hash=""
    )
    return msgspec.structs.replace(given, plan_hash=plan_hash(given))


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Load], Listener]]:
    """Starts a worker that loads as it is given; returns the listener of its heads."""
    listener = Listener(("127.0.0.1", 0), SECRET)
    threads: list[threading.Thread] = []

    def started(load: Load) -> Listener:
        monkeypatch.setattr(worker, "load_assigned", lambda assigned, *others: load(assigned))
        monkeypatch.setattr(
            worker,
            "_join",
            lambda settings, port, loaded: Join("w", "torch", DEVICE, port, loaded=loaded),
        )
        settings = WorkerSettings(listener.address, SECRET)

        def run() -> None:
            with suppress(ClusterRefused):
                run_worker(settings, lambda text: None, None)  # type: ignore[arg-type]

        threads.append(threading.Thread(target=run, daemon=True))
        threads[0].start()
        return listener

    def refused(*given: object) -> Channel:
        raise ClusterRefused("the test has ended")

    yield started
    monkeypatch.setattr(worker, "dial", refused)
    with suppress(Empty):  # the worker may have come back before
        head = listener.arrived.get(timeout=0.5)
        if head is not None:
            head.close()
    listener.close()
    threads[0].join(10)


def received(channel: Channel, kind: type[Message]) -> Any:
    message, _ = channel.receive()
    while isinstance(message, Beat):
        message, _ = channel.receive()
    assert isinstance(message, kind)
    return message


def met(listener: Listener) -> tuple[Channel, Join]:
    head = listener.arrived.get(timeout=60)
    assert head is not None
    return head, received(head, Join)


def test_the_weights_of_another_model_are_freed_first(
    start: Callable[[Load], Listener],
) -> None:
    parts: list[weakref.ref[Any]] = []
    alive: list[bool] = []

    def load(assigned: Assignment) -> Any:
        alive.extend(ref() is not None for ref in parts)
        part = Part(assigned)
        parts.append(weakref.ref(part))
        return part

    listener = start(load)
    for sample in ("one", "two"):
        head, _ = met(listener)
        head.send(assignment(sample))
        received(head, Ready)
        head.send(Goodbye())
    assert alive == [False]


@pytest.mark.full
def test_weights_that_were_loaded_when_another_worker_was_lost_stay(
    start: Callable[[Load], Listener],
) -> None:
    has_asked = threading.Event()

    def load(assigned: Assignment) -> Any:
        assert has_asked.wait(60)
        return Part(assigned)

    listener = start(load)
    head, join = met(listener)
    assert join.loaded == ""
    head.send(assignment("one"))
    head.send(Rejoin("a worker is lost", 60.0))
    head.close()
    has_asked.set()
    head, join = met(listener)
    assert join.loaded == assignment("one").plan_hash
    head.send(Goodbye())

"""Connections are closed by other threads at any moment: nobody waits in vain."""

from __future__ import annotations

import errno
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import pytest
from clusters import SECRET

from mrs.distributed.protocol import link as link_module
from mrs.distributed.protocol.channel import Channel
from mrs.distributed.protocol.failures import PeerFailed, start_thread
from mrs.distributed.protocol.handshake import Listener, dial
from mrs.distributed.protocol.link import Link
from mrs.distributed.protocol.messages import Beat, Failed, Message
from mrs.distributed.worker import WorkerSettings, _Session
from mrs.errors import MrsError


def test_what_a_thread_raises_is_passed_on() -> None:
    errors: SimpleQueue[Exception] = SimpleQueue()

    def work() -> None:
        raise ValueError

    start_thread("test", work, errors.put)
    assert isinstance(errors.get(timeout=60), ValueError)


@pytest.mark.parametrize("seed", range(20))
def test_a_session_that_is_closed_at_any_moment_raises_errors_of_its_own(seed: int) -> None:
    """From both sides; an exception of a thread without anybody who takes it fails the test."""
    chance = random.Random(seed)
    listener = Listener(("127.0.0.1", 0), SECRET)
    session = _Session(WorkerSettings(listener.address, SECRET), dial(listener.address, SECRET))
    head = listener.arrived.get(timeout=60)
    assert head is not None
    raised: list[Exception] = []

    def join() -> None:
        try:
            session.join("")
        except Exception as error:  # noqa: BLE001 - of which kind is what the test asks
            raised.append(error)

    def answer() -> None:
        with suppress(OSError):
            head.send(Failed("another one has failed", 6))

    threads = [threading.Thread(target=join)]
    for close in (session.close, head.close, listener.close, answer):
        threads.append(threading.Timer(chance.random() * 0.01, close))
    chance.shuffle(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert [isinstance(each, MrsError) for each in raised] == [True], raised


def test_an_unexpected_error_of_a_link_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a message would wait forever."""
    listener = Listener(("127.0.0.1", 0), SECRET)
    dialed = dial(listener.address, SECRET)
    accepted = listener.arrived.get(timeout=60)
    assert accepted is not None

    def fails() -> int:
        raise RuntimeError("no memory of processes")

    monkeypatch.setattr(link_module, "resident_bytes", fails)
    monkeypatch.setattr(link_module, "BEAT_S", 0.01)
    ends: SimpleQueue[MrsError] = SimpleQueue()
    link = Link(dialed, "the coordinator", lambda link, error: ends.put(error))
    with pytest.raises(PeerFailed, match=r"the coordinator has failed .*RuntimeError in fails"):
        link.take(Message, timeout_s=60)
    assert isinstance(ends.get(timeout=60), PeerFailed)
    accepted.close()
    assert ends.empty()  # the second thread of the link says nothing more
    link.close()
    listener.close()


def test_a_listener_goes_on_after_too_many_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    accept: Callable[..., Any] = socket.socket.accept
    failures = [OSError(errno.EMFILE, "Too many open files"), OSError(errno.ECONNABORTED, "")]

    def failing(self: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", failing)
    listener = Listener(("127.0.0.1", 0), SECRET)
    dialed = dial(listener.address, SECRET)
    assert isinstance(listener.arrived.get(timeout=60), Channel)
    assert not failures
    listener.close()
    assert listener.arrived.get(timeout=60) is None
    dialed.close()


def test_who_comes_while_a_listener_closes_is_not_left_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody takes it any more."""
    from mrs.distributed.protocol import handshake

    welcome = handshake.welcome
    listener = Listener(("127.0.0.1", 0), SECRET)

    def slow(*given: Any) -> Iterator[None]:
        yield from welcome(*given)
        listener.close()

    monkeypatch.setattr(handshake, "welcome", slow)
    dialed = dial(listener.address, SECRET)
    dialed.set_timeout(60)
    since_s = time.monotonic()
    with pytest.raises((EOFError, OSError)):
        dialed.receive()
    assert time.monotonic() - since_s < 30
    with suppress(OSError):
        dialed.send(Beat("late"))
    dialed.close()

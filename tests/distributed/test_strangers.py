"""Strangers at a listener: however many come, and whatever they do, a right worker is admitted."""

from __future__ import annotations

import json
import logging
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from mrs.distributed.coordinator import Arrivals
from mrs.distributed.protocol import handshake
from mrs.distributed.protocol.channel import Channel
from mrs.distributed.protocol.handshake import Listener, dial
from mrs.distributed.protocol.messages import Attach, Beat
from support.waiting import until

SECRET = b"a secret of tests"


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener(("127.0.0.1", 0), SECRET)
    yield found
    found.close()


def admit(listener: Listener) -> None:
    """A right worker comes, and what it sends arrives."""
    dialed = dial(listener.address, SECRET)
    accepted = listener.arrived.get(timeout=120)
    assert isinstance(accepted, Channel)
    dialed.send(Beat("x"))
    assert accepted.receive() == (Beat("x"), b"")
    dialed.close()
    accepted.close()


def greeters() -> int:
    return sum(each.name in ("mrs-greet", "mrs-listen") for each in threading.enumerate())


@pytest.mark.full
def test_many_strangers_have_one_thread_and_few_sockets(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 in all, of which 200 stay, and would for long."""
    monkeypatch.setattr(handshake, "GREETING_S", 1000.0)
    before, stayed = greeters(), list[socket.socket]()
    with ExitStack() as stack:
        for number in range(2000):
            stranger = socket.create_connection(listener.address, timeout=120)
            if number % 10:
                stranger.close()
                continue
            stayed.append(stack.enter_context(stranger))
            stranger.sendall(b"\x20")  # the begin of a frame
            assert greeters() == before
        admit(listener)
        most = handshake.MOST_STRANGERS
        until(lambda: sum(map(is_dropped, stayed)) >= len(stayed) - most)
    assert greeters() == before


def is_dropped(stranger: socket.socket) -> bool:
    """Whether the listener has closed the connection."""
    stranger.setblocking(False)
    try:
        return not stranger.recv(1)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_a_stranger_that_sends_slowly_is_dropped_at_a_total_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshake, "GREETING_S", 0.5)
    listener = Listener(("127.0.0.1", 0), SECRET)
    frame = struct.pack("<IQ", 4000, 0) + bytes(4000)
    with socket.create_connection(listener.address) as stranger:
        stranger.settimeout(0.1)
        until_s = time.monotonic() + 120
        with suppress(ConnectionResetError, BrokenPipeError):
            for byte in frame:
                stranger.sendall(bytes([byte]))
                assert time.monotonic() < until_s, "it was never cut off"
                with suppress(TimeoutError):
                    assert stranger.recv(1) == b""
                    break
    admit(listener)
    listener.close()


def test_a_worker_whose_first_message_comes_slowly_is_dropped(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next bytes always come in time, and others wait behind it."""
    monkeypatch.setattr("mrs.distributed.protocol.handshake.SILENCE_S", 0.5)
    arrivals = Arrivals(listener)
    slow = dial(listener.address, SECRET)
    slow._socket.sendall(struct.pack("<IQ", 4000, 0))
    good = dial(listener.address, SECRET)
    good.send(Attach(1, "right"))
    until_s = time.monotonic() + 120
    while arrivals.attaching.empty():
        assert time.monotonic() < until_s, "the other one was never seen"
        with suppress(ConnectionResetError, BrokenPipeError):
            slow._socket.sendall(b"\0")
        time.sleep(0.1)
    for channel in (slow, good):
        channel.close()


def test_peers_that_say_nothing_do_not_delay_others(listener: Listener) -> None:
    """Each of them had six seconds before."""
    arrivals = Arrivals(listener)
    silent = [dial(listener.address, SECRET) for _ in range(8)]
    good = dial(listener.address, SECRET)
    good.send(Attach(1, "right"))
    _, message = arrivals.attaching.get(timeout=120)
    assert message == Attach(1, "right")
    for channel in (*silent, good):
        channel.close()


@pytest.mark.full
def test_without_descriptors_a_line_a_second_is_said(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, until_s = socket.socket.accept, time.monotonic() + 1.5

    def failing(self: socket.socket) -> tuple[socket.socket, object]:
        if time.monotonic() < until_s:
            raise OSError(24, "Too many open files")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", failing)
    with caplog.at_level(logging.WARNING):
        admit(listener)
    said = [each.getMessage() for each in caplog.records]
    assert 1 <= said.count("cannot accept a worker: Too many open files") <= 2


def flood(connections: int) -> list[dict[str, Any]]:
    folder = Path(__file__).parent
    command = [sys.executable, str(folder / "listener_flood.py"), str(connections), "40"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=1000)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux")
@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=pytest.mark.slow)])
def test_listeners_live_through_a_flood_with_a_limit_of_forty_threads(count: int) -> None:
    """Of coordinator and worker; links of peers say in one line that there is no thread left."""
    for each in flood(count):
        assert each["arrived"] in ("Join", "Attach"), each
        assert each["threads"][0] == each["threads"][1] <= 3, each
        assert each["MiB"][1] - each["MiB"][0] < 32, each
        assert each["descriptors"] < 100, each
        links, error = each["links"]
        assert 15 < links < 20, each
        assert error.startswith("no thread can start"), each
        assert each["status"] == 0

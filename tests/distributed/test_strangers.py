"""Strangers at a listener: however many come, and whatever they do, a right worker is admitted."""

from __future__ import annotations

import logging
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from mrs.distributed import greetings
from mrs.distributed.arrivals import Arrivals
from mrs.distributed.channel import Channel
from mrs.distributed.meeting import Listener, dial
from mrs.distributed.messages import Attach, Beat

SECRET = b"a secret of tests"


@pytest.fixture
def listener() -> Iterator[Listener]:
    found = Listener(("127.0.0.1", 0), SECRET)
    yield found
    found.close()


def admit(listener: Listener) -> None:
    """A right worker comes, and what it sends arrives."""
    dialed = dial(listener.address, SECRET)
    accepted = listener.arrived.get(timeout=30)
    assert isinstance(accepted, Channel)
    dialed.send(Beat("x"))
    assert accepted.receive() == (Beat("x"), b"")
    dialed.close()
    accepted.close()


def greeters() -> int:
    return sum(each.name in ("mrs-greet", "mrs-listen") for each in threading.enumerate())


def test_many_strangers_have_one_thread_and_few_sockets(listener: Listener) -> None:
    """2,000 in all, of which 200 stay."""
    before = greeters()
    with ExitStack() as stack:
        for number in range(2000):
            stranger = socket.create_connection(listener.address, timeout=30)
            if number % 10:
                stranger.close()
                continue
            stack.enter_context(stranger)
            stranger.sendall(b"\x20")  # the begin of a frame
            assert greeters() == before
        admit(listener)
    assert greeters() == before


def test_a_stranger_that_sends_slowly_is_dropped_at_a_total_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(greetings, "GREETING_S", 0.5)
    listener = Listener(("127.0.0.1", 0), SECRET)
    frame = struct.pack("<IQ", 4000, 0) + bytes(4000)
    with socket.create_connection(listener.address) as stranger:
        stranger.settimeout(0.1)
        until_s = time.monotonic() + 20
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
    monkeypatch.setattr("mrs.distributed.arrivals.SILENCE_S", 0.5)
    arrivals = Arrivals(listener)
    slow = dial(listener.address, SECRET)
    slow._socket.sendall(struct.pack("<IQ", 4000, 0))
    good = dial(listener.address, SECRET)
    good.send(Attach(1, "right"))
    until_s = time.monotonic() + 20
    while arrivals.attaching.empty():
        assert time.monotonic() < until_s, "the other one was never seen"
        with suppress(ConnectionResetError, BrokenPipeError):
            slow._socket.sendall(b"\0")
        time.sleep(0.1)
    for channel in (slow, good):
        channel.close()


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


#: A listener in a process that can start no further threads.
WITHOUT_THREADS = """
import threading
from mrs.distributed.meeting import Listener
listener = Listener(("127.0.0.1", 0), b"a secret of tests")
def refuse(*given, **named):
    raise RuntimeError("can't start new thread")
threading._start_new_thread = refuse
print(listener.address[1], flush=True)
channel = listener.arrived.get(timeout=60)
print("arrived" if channel is not None else "the listener has died", flush=True)
"""


def test_a_listener_lives_when_no_thread_can_start() -> None:
    """The limit is simulated: that of the system (RLIMIT_NPROC) does not hold for root."""
    command = [sys.executable, "-c", WITHOUT_THREADS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, ExitStack() as s:
        assert process.stdout is not None
        address = "127.0.0.1", int(process.stdout.readline())
        for _ in range(200):
            s.enter_context(socket.create_connection(address, timeout=30))
        dialed = dial(address, SECRET)
        assert process.stdout.readline() == "arrived\n"
        dialed.close()

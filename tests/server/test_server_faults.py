"""Broken and hostile clients: the next request is answered correctly each time."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest
from running_server import CHAT, RunningServer, running, until

from mrs.server.settings import ServerSettings
from support.waiting import PATIENCE_S

#: A client in a process of its own, which reads one chunk and then sleeps.
KILLED_CLIENT = """
import http.client, json, sys, time
connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]))
body = {"messages": "Hi", "max_tokens": 1900, "ignore_eos": True, "stream": sys.argv[3] == "1"}
connection.request("POST", "/v1/chat/completions", json.dumps(body))
print("sent", flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def strict() -> Iterator[RunningServer]:
    """Small limits, so that they are reached quickly; without a prefix cache no block stays."""
    settings = ServerSettings(read_timeout_s=1.0, max_body_bytes=100_000)
    with running(settings, prefix_cache_n=0, send_buffer_bytes=8192) as made:
        yield made


@pytest.fixture(autouse=True)
def _answers_afterwards(strict: RunningServer) -> Iterator[None]:
    yield
    assert strict.chat().json()["choices"][0]["message"]["content"].startswith("The **K")
    strict.wait_until_idle()


def exchange(server: RunningServer, sent: bytes, *, seconds: float = PATIENCE_S) -> bytes:
    """All that the server sends before it closes the connection."""
    received = b""
    with (
        socket.create_connection(server.address, timeout=seconds) as connection,
        suppress(ConnectionResetError, BrokenPipeError),
    ):
        connection.sendall(sent)
        while data := connection.recv(65536):
            received += data
    return received


def head(**headers: object) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n".encode()


def error_of(response: bytes) -> dict[str, object]:
    found = json.loads(response.partition(b"\r\n\r\n")[2])["error"]
    assert found.keys() == {"message", "type", "param", "code"}
    return dict(found)


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
@pytest.mark.parametrize("stream", ["0", "1"])
@pytest.mark.usefixtures("slow_steps")
def test_a_killed_client_frees_its_sequence(strict: RunningServer, stream: str) -> None:
    host, port = strict.address
    command = [sys.executable, "-c", KILLED_CLIENT, host, str(port), stream]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"sent\n"
        until(lambda: strict.stats.running == 1)
        before = strict.stats.computed_tokens
        os.kill(client.pid, signal.SIGKILL)
    until(lambda: strict.stats[:2] == (0, 0))
    assert strict.stats.computed_tokens - before < 1900


@pytest.mark.full
def test_a_body_that_stops_halfway_ends_with_an_error(strict: RunningServer) -> None:
    response = exchange(strict, head(content_length=100) + b'{"mess')
    assert response.startswith(b"HTTP/1.1 408")
    assert error_of(response)["type"] == "timeout_error"


@pytest.mark.full
def test_a_head_that_stops_halfway_is_cut_off(strict: RunningServer) -> None:
    assert exchange(strict, b"POST /v1/chat HTTP/1.1\r\nhost: lo") == b""
    assert exchange(strict, b"") == b""


def test_a_huge_body_is_refused_before_it_is_read(strict: RunningServer) -> None:
    response = exchange(strict, head(content_length=2**30) + b"{")
    assert response.startswith(b"HTTP/1.1 413")
    assert error_of(response)["code"] == "body_error"


def send_until_it_fails(connection: socket.socket, chunk: bytes) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        connection.sendall(chunk)


@pytest.mark.full
def test_an_endless_chunked_body_is_refused_at_the_limit(strict: RunningServer) -> None:
    process = psutil.Process()
    before_bytes = process.memory_info().rss
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    response = exchange(strict, head(transfer_encoding="chunked") + 2 * chunk)
    assert response.startswith(b"HTTP/1.1 413")
    with socket.create_connection(strict.address, timeout=PATIENCE_S) as connection:
        connection.sendall(head(transfer_encoding="chunked"))
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            send_until_it_fails(connection, chunk)
    assert process.memory_info().rss - before_bytes < 30 * 2**20


def test_a_client_that_sends_all_of_a_body_too_large_reads_why(strict: RunningServer) -> None:
    """As HTTP clients do: they send the whole request before they read."""
    for body in (b"x" * 200_000, b"x" * 5_000_000):
        for _ in range(20):
            response = exchange(strict, head(content_length=len(body)) + body)
            assert response.startswith(b"HTTP/1.1 413")
            assert error_of(response)["code"] == "body_error"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx-header: " + b"y" * 1_000_000,
        b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(100_000)),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        b"NONSENSE\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n",
    ],
    ids=["long header", "many headers", "TLS", "nonsense", "negative length"],
)
def test_what_is_no_http_gets_an_error_in_the_usual_shape(
    strict: RunningServer, sent: bytes
) -> None:
    response = exchange(strict, sent)
    assert response.startswith(b"HTTP/1.1 400")
    assert error_of(response)["code"] == "invalid_http"


def test_a_body_with_two_lengths_is_no_way_past_a_proxy(strict: RunningServer) -> None:
    """A proxy that goes by the first length takes the second request for a part of the first."""
    hidden = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    sent = (
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % (5 + len(hidden))
    )
    response = exchange(strict, sent + hidden)
    assert response.startswith(b"HTTP/1.1 400")
    assert response.count(b"HTTP/1.1") == 1
    assert b"two lengths" in response


def test_a_reader_that_stalls_is_cut_off(strict: RunningServer) -> None:
    """It asks for far more than the buffers of the connection hold, and reads nothing."""
    body = json.dumps(
        {"messages": "Hi", "max_tokens": 1900, "ignore_eos": True, "stream": True, "n": 20,
         "logprobs": True, "top_logprobs": 20}
    ).encode()  # fmt: skip
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(strict.address)
        connection.sendall(head(content_length=len(body)) + body)
        until(lambda: strict.stats.running > 0)
        until(lambda: strict.stats[:2] == (0, 0))
        until(lambda: strict.server.service.num_requests == 0)


def test_invalid_utf8_and_lone_surrogates_are_refused(strict: RunningServer) -> None:
    for body in (b'{"messages": "\xc3\x28"}', b'{"messages": "a", "stop": "\xff"}'):
        assert strict.http.post(CHAT, content=body).status_code == 400


def descriptors() -> int:
    return psutil.Process().num_fds() if hasattr(psutil.Process, "num_fds") else 0


@pytest.mark.full
def test_random_requests_with_a_third_cut_off_leave_nothing_behind(strict: RunningServer) -> None:
    """No sequence, no block, no file descriptor, no task."""
    chance = random.Random(5)
    space = strict.model.engine._engine.caches.space
    strict.wait_until_idle()
    strict.http.close()
    strict.http = type(strict.http)(base_url=strict.url, timeout=PATIENCE_S)
    before = descriptors()

    def one(number: int) -> None:
        body = {
            "messages": f"{number} " + "word " * chance.randint(0, 300),
            "max_tokens": chance.randint(1, 24),
            "n": chance.choice([1, 1, 1, 2]),
            "stream": chance.random() < 0.5,
        }
        content = json.dumps(body).encode()
        with socket.create_connection(strict.address, timeout=PATIENCE_S) as connection:
            connection.sendall(head(content_length=len(content), connection="close") + content)
            if number % 3 == 0:
                time.sleep(chance.random() * 0.05)
                return
            while connection.recv(65536):
                pass

    def several(numbers: range) -> None:
        for number in numbers:
            one(number)

    threads = [threading.Thread(target=several, args=(range(n, 120, 6),)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    strict.wait_until_idle()
    until(lambda: descriptors() <= before)
    until(lambda: strict.server.service.num_requests == 0)
    assert [pool.used for pool in space.pools] == [0] * len(space.pools)

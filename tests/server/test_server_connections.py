"""Connections of strangers: each ends in time, there is room for so many, and few lines tell."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import h11
import pytest
from running_server import CHAT, RunningServer, running, until

from mrs.server.http import pace
from mrs.server.log.lines import RequestLog
from mrs.server.log.record import RequestRecord
from mrs.server.replies import group
from mrs.server.settings import ServerSettings
from support.waiting import PATIENCE_S

BODY = json.dumps({"messages": "What is a KV cache?", "max_tokens": 4}).encode()
#: Far less than it takes until a client that sends a byte each 0.1 s has sent its request.
SECONDS = 25.0


@pytest.fixture(scope="module")
def strict() -> Iterator[RunningServer]:
    settings = ServerSettings(read_timeout_s=1.0, max_connections=8)
    with running(settings) as made:
        yield made


@pytest.fixture(autouse=True)
def _answers_afterwards(strict: RunningServer) -> Iterator[None]:
    yield
    assert strict.chat().status_code == 200


def head(length: int = len(BODY), path: str = CHAT) -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n".encode()


def read_response(connection: socket.socket) -> bytes:
    """One response with a length, of a connection that stays open."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    start, _, body = received.partition(b"\r\n\r\n")
    length = int(start.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return start + body


def trickle(connection: socket.socket, sent: bytes) -> bytes:
    """What comes back, until the end, while a byte is sent each 0.1 s. Fails if it does not end."""
    received, deadline_s = b"", time.monotonic() + SECONDS
    connection.settimeout(0.1)
    rest = iter(sent)
    while time.monotonic() < deadline_s:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.send(bytes([next(rest)]))
        try:
            data = connection.recv(65536)
        except TimeoutError:
            continue
        except (BrokenPipeError, ConnectionResetError):
            return received
        if not data:
            return received
        received += data
    raise AssertionError("the connection was never cut off")


def test_a_slow_head_is_cut_off_at_a_total_deadline(strict: RunningServer) -> None:
    with socket.create_connection(strict.address) as connection:
        assert trickle(connection, head() + b" " * 500) == b""


@pytest.mark.full
@pytest.mark.parametrize("is_slow", [False, True], ids=["half a head", "slow head"])
def test_a_later_head_on_a_kept_connection_is_cut_off_too(
    strict: RunningServer, is_slow: bool
) -> None:
    with socket.create_connection(strict.address, timeout=PATIENCE_S) as connection:
        connection.sendall(head() + BODY)
        assert read_response(connection).startswith(b"HTTP/1.1 200")
        later = b"POST /v1/chat/completions HTTP/1.1\r\nx-long: " + b"y" * 500
        if not is_slow:
            connection.sendall(later)
            later = b""
        with suppress(StopIteration):
            assert trickle_or_wait(connection, later) == b""


def trickle_or_wait(connection: socket.socket, sent: bytes) -> bytes:
    if sent:
        return trickle(connection, sent)
    connection.settimeout(SECONDS)
    return connection.recv(100)


@pytest.mark.full
def test_a_kept_connection_answers_again_after_a_pause(strict: RunningServer) -> None:
    """The deadline of a head begins with its first byte: between requests there is no hurry."""
    with socket.create_connection(strict.address, timeout=PATIENCE_S) as connection:
        for _ in range(2):
            connection.sendall(head() + BODY)
            assert read_response(connection).startswith(b"HTTP/1.1 200")
            time.sleep(1.5)


def test_no_part_of_a_response_waits_for_an_acknowledgement(strict: RunningServer) -> None:
    assert strict.chat().status_code == 200
    until(lambda: open_sockets(strict) == 1)  # those of other tests have left
    (open_one,) = strict.server._server.server_state.connections
    made = open_one.transport.get_extra_info("socket")
    assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_body_of_a_byte_now_and_then_ends_with_an_error(strict: RunningServer) -> None:
    with socket.create_connection(strict.address) as connection:
        connection.sendall(head(1000))
        response = trickle(connection, b" " * 1000)
    assert response.startswith(b"HTTP/1.1 408")
    assert json.loads(response.partition(b"\r\n\r\n")[2])["error"]["type"] == "timeout_error"


@pytest.mark.full
def test_a_slow_body_of_a_request_that_was_refused_is_cut_off(strict: RunningServer) -> None:
    """Nobody reads it: the answer was there before."""
    with socket.create_connection(strict.address) as connection:
        connection.sendall(head(1000, "/nowhere"))
        assert trickle(connection, b" " * 1000).startswith(b"HTTP/1.1 404")


@pytest.mark.full
def test_a_long_body_may_take_longer_than_a_short_one(
    strict: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "LEAST_BYTES_PER_S", 100)
    with socket.create_connection(strict.address, timeout=PATIENCE_S) as connection:
        connection.sendall(head(3000 + len(BODY)))
        for _ in range(10):  # 1.5 s, and the start of the body may take 1 s
            connection.sendall(b" " * 300)
            time.sleep(0.15)
        connection.sendall(BODY)
        assert read_response(connection).startswith(b"HTTP/1.1 200")


def open_sockets(strict: RunningServer) -> int:
    return len(strict.server._server.server_state.connections)


@pytest.mark.usefixtures("slow_steps")
def in_chunks(body: bytes, size: int) -> bytes:
    """A request whose body has chunks of so many bytes."""
    lines = [b"POST %b HTTP/1.1" % CHAT.encode(), b"host: localhost"]
    lines += [b"connection: close", b"transfer-encoding: chunked", b"", b""]
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    coded = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks)
    return b"\r\n".join(lines) + coded + b"0\r\n\r\n"


def answer_to(server: RunningServer, request: bytes) -> bytes:
    with socket.create_connection(server.address) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize(("size", "length"), [(1, 16_000), (64, 300_000), (10_000, 300_000)])
def test_a_body_may_have_many_chunks(strict: RunningServer, size: int, length: int) -> None:
    body = BODY + b" " * (length - len(BODY))
    assert answer_to(strict, in_chunks(body, size)).startswith(b"HTTP/1.1 200 ")


def test_a_body_has_no_more_small_chunks_than_bytes_explain(strict: RunningServer) -> None:
    refused = answer_to(strict, in_chunks(BODY + b" " * 40_000, 1))
    assert refused.startswith(b"HTTP/1.1 400 ")
    assert (
        "too many small chunks" in json.loads(refused.partition(b"\r\n\r\n")[2])["error"]["message"]
    )
    # The connection is no worse off if the request is answered before its body is read.
    early = in_chunks(b" " * 40_000, 1).replace(CHAT.encode(), b"/nowhere", 1)
    assert answer_to(strict, early)[:12] in (b"HTTP/1.1 404", b"HTTP/1.1 400")


def test_small_chunks_are_read_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection reads few of them before the event loop goes round again."""
    turns, most = [0], 0

    def next_event(connection: h11.Connection) -> Any:
        nonlocal most
        turns[-1] += 1
        most = max(most, turns[-1])
        return original(connection)

    def run_once(loop: asyncio.BaseEventLoop) -> None:
        turns.append(0)
        once(loop)

    original, once = h11.Connection.next_event, asyncio.BaseEventLoop._run_once  # type: ignore[attr-defined]
    monkeypatch.setattr(h11.Connection, "next_event", next_event)
    monkeypatch.setattr(asyncio.BaseEventLoop, "_run_once", run_once)
    with running() as server:
        request = in_chunks(BODY + b" " * 10_000, 1)
        assert answer_to(server, request).startswith(b"HTTP/1.1 200 ")
        assert sum(turns) > 10_000
        assert most <= 3 * 64  # one for each connection that may be open


def test_connections_beyond_the_cap_are_told(strict: RunningServer) -> None:
    """All of those that are open have a request: none is given up for a new one."""
    body = json.dumps({"messages": "Hi", "max_tokens": 1000, "ignore_eos": True}).encode()
    strict.http.close()
    strict.http = type(strict.http)(base_url=strict.url, timeout=PATIENCE_S)
    with ExitStack() as stack:
        for _ in range(8):
            made = stack.enter_context(socket.create_connection(strict.address, timeout=PATIENCE_S))
            made.sendall(head(len(body)) + body)
        until(lambda: strict.server.service.num_requests == 8)
        with socket.create_connection(strict.address, timeout=PATIENCE_S) as further:
            response = further.recv(65536)
        assert response.startswith(b"HTTP/1.1 503")
        error = json.loads(response.partition(b"\r\n\r\n")[2])["error"]
        assert error["code"] == "too_many_connections"
    until(lambda: strict.server.service.num_requests == 0)


def test_connections_without_a_request_make_room(strict: RunningServer) -> None:
    """However many there are, a client with a request is answered."""
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(socket.create_connection(strict.address, timeout=PATIENCE_S))
            assert open_sockets(strict) <= 8
        time.sleep(1.2)
        assert strict.chat().status_code == 200


def test_problems_are_a_line_a_second_also_where_requests_are_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, lines = 100.0, list[str]()
    monkeypatch.setattr("mrs.server.log.lines.time.monotonic", lambda: now_s)
    log = RequestLog(lines.append, as_json=True, only_problems=True)
    log.request(RequestRecord("id", "POST", CHAT))
    for now_s in (100.0, 100.5, 100.9, 101.1):  # noqa: B007 - what the clock says
        log.problem("no descriptor")
    assert [json.loads(line)["count"] for line in lines] == [1, 3]


@pytest.mark.full
def test_a_reader_that_stops_gets_no_more_than_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its replies end long before it is cut off; what there is of them can still be read."""
    monkeypatch.setattr(group, "UNREAD_BYTES", 50_000)
    body = {"messages": "Hi", "max_tokens": 1900, "ignore_eos": True, "stream": True, "n": 4,
            "logprobs": True, "top_logprobs": 20}  # fmt: skip
    content = json.dumps(body).encode()
    with running(send_buffer_bytes=8192) as server, socket.socket() as connection:
        server.server.memory.unread.most_bytes = None  # that of all replies is another limit
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(server.address)
        connection.sendall(head(len(content)) + content)
        until(lambda: server.stats.running > 0)
        until(lambda: server.stats[:2] == (0, 0))
        assert server.stats.computed_tokens < 4 * 1900
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received += connection.recv(65536)
        assert b'"code":"slow_reader"' in received
        assert server.chat().status_code == 200


#: A server whose process has few descriptors; it tells its URL, and then each line of its log.
FEW_DESCRIPTORS = """
import resource, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/.."]
from running_server import running
from mrs.server.settings import ServerSettings
from mrs.server.http import acceptor
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
if sys.argv[2] == "uncapped":
    acceptor.most_connections = lambda wanted: wanted
    import mrs.server.serve
    mrs.server.serve.most_connections = acceptor.most_connections
with running(ServerSettings(read_timeout_s=5)) as made:
    print(made.url, flush=True)
    sys.stdin.readline()
    print(*made.said, sep="\\n", flush=True)
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit of descriptors")
@pytest.mark.parametrize("cap", ["capped", "uncapped"])
def test_a_flood_at_few_descriptors_is_a_line_a_second(cap: str) -> None:
    """In JSON, and on no other way; `uncapped` reaches the limit of the system itself."""
    command = [sys.executable, "-c", FEW_DESCRIPTORS, str(Path(__file__).parent), cap]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        host, _, port = url.removeprefix("http://").rpartition(":")
        start_s = time.monotonic()
        with ExitStack() as stack:
            for _ in range(300):
                made = stack.enter_context(
                    socket.create_connection((host, int(port)), timeout=PATIENCE_S)
                )
                with suppress(BrokenPipeError, ConnectionResetError):
                    made.sendall(head(1000))  # a request whose body does not come
            time.sleep(3)
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
            client.sendall(head() + BODY)
            assert read_response(client).startswith(b"HTTP/1.1 200")
        out, errors = server.communicate(os.linesep, timeout=PATIENCE_S)
        seconds = time.monotonic() - start_s
    problems = [json.loads(line) for line in out.splitlines()]
    problems = [each for each in problems if each["event"] == "problem"]
    assert 1 <= len(problems) <= seconds + 1
    words = "are open already" if cap == "capped" else "Too many open files"
    assert any(words in each["message"] for each in problems)
    assert errors == ""

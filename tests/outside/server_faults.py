"""Faults of clients and of the machine: after each, the server answers the next request correctly.

    python tests/outside/server_faults.py [NAME]

Only faults whose name contains NAME, by default all. Ends with exit code 0 if every answer after a
fault is that of before, all errors have the one shape, and nothing hangs.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from serving import server_process

CHAT = "/v1/chat/completions"
KEY = "a-secret-of-these-tests"
LONG = {"messages": "Hi", "max_tokens": 1900, "ignore_eos": True}
#: Sends the bytes of standard input, says so, and reads nothing.
CLIENT = (
    "import socket, sys, time; c = socket.create_connection((sys.argv[1], int(sys.argv[2])));"
    "c.sendall(sys.stdin.buffer.read()); print('sent', flush=True); time.sleep(600)"
)
MIB = 2**20


class Faults:
    """Each method whose name begins with `fault_` is one fault; it may return what it saw."""

    def __init__(self, server: subprocess.Popen[str], url: str) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self.address = (host, int(port))
        self.process = psutil.Process(server.pid)
        self.http = httpx.Client(
            base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=300
        )

    def answer(self) -> str:
        body = {"messages": "What is a KV cache?", "max_tokens": 12, "temperature": 0}
        return str(self.http.post(CHAT, json=body).json()["choices"][0]["message"]["content"])

    def wait_until_idle(self) -> None:
        pattern = re.compile(r"^mrs:num_requests_(?:running|waiting){.*} (.*)$", re.MULTILINE)
        deadline_s = time.monotonic() + 120
        while any(map(float, pattern.findall(self.http.get("/metrics").text))):
            assert time.monotonic() < deadline_s, "a sequence of a client that left still runs"
            time.sleep(0.1)

    def sent(self, body: dict[str, object], path: str = CHAT) -> bytes:
        content = json.dumps(body).encode()
        return self.head(f"content-length: {len(content)}", path) + content

    def head(self, line: str, path: str = CHAT) -> bytes:
        start = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n"
        return f"{start}{line}\r\n\r\n".encode()

    def killed(self, data: bytes, seconds: float = 0.5) -> None:
        """A process that sends this, and is killed some time later."""
        command = [sys.executable, "-c", CLIENT, self.address[0], str(self.address[1])]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            client.stdin.write(data)
            client.stdin.close()
            client.stdout.readline()
            time.sleep(seconds)
            client.send_signal(signal.SIGKILL)

    def exchanged(self, data: bytes) -> bytes:
        """All that the server sends until it closes the connection."""
        received = b""
        with socket.create_connection(self.address, timeout=120) as connection:
            with suppress(ConnectionError):
                connection.sendall(data)
            with suppress(ConnectionError):
                while part := connection.recv(65536):
                    received += part
        return received

    def fault_client_killed_in_the_head(self) -> None:
        self.killed(self.sent(LONG)[:40])

    def fault_client_killed_in_the_body(self) -> None:
        self.killed(self.sent(LONG)[:-5])

    def fault_client_killed_in_the_prompt(self) -> None:
        self.killed(self.sent({**LONG, "messages": "word " * 1800}), 0.05)

    def fault_client_killed_while_decoding(self) -> None:
        for stream in (False, True):
            self.killed(self.sent({**LONG, "stream": stream, "n": 2}))

    def fault_client_killed_in_the_queue(self) -> None:
        with ThreadPoolExecutor(6) as threads:
            list(threads.map(lambda _: self.killed(self.sent({**LONG, "n": 4}), 2), range(6)))

    def fault_slow_reader(self) -> None:
        body = {**LONG, "stream": True, "n": 8, "logprobs": True, "top_logprobs": 20}
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(self.address)
            connection.sendall(self.sent(body))
            time.sleep(2)
            self.answer()

    def fault_half_sent_body(self) -> str:
        return status_of(self.exchanged(self.head("content-length: 100") + b"{"), b"408")

    def fault_header_flood(self) -> str:
        flood = b"".join(b"x-%d: y\r\n" % number for number in range(200_000))
        start = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"
        return status_of(self.exchanged(start + flood), b"400")

    def fault_body_of_a_gigabyte(self) -> str:
        before_bytes = self.process.memory_info().rss
        found = status_of(self.exchanged(self.head(f"content-length: {2**30}") + b"{"), b"413")
        with (
            socket.create_connection(self.address, timeout=120) as connection,
            suppress(ConnectionError),
        ):
            connection.sendall(self.head("transfer-encoding: chunked"))
            for _ in range(1024):
                connection.sendall(b"100000\r\n" + bytes(MIB) + b"\r\n")
            raise AssertionError("the server read all of it")
        grown = (self.process.memory_info().rss - before_bytes) // MIB
        return f"{found}, {grown} MiB more memory"

    def fault_invalid_utf8(self) -> str:
        return refused(self.http.post(CHAT, content=b'{"messages": "\xc3\x28"}'), 400)

    def fault_wrong_key(self) -> str:
        found = [
            self.http.post(CHAT, json=LONG, headers={"authorization": f"Bearer {key}"})
            for key in ("-", "x", KEY[:-1], f"{KEY}y", "x" * 8000)
        ]
        return {refused(each, 401) for each in found}.pop()

    def fault_failing_model(self) -> str:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
            (folder / "model.safetensors").write_bytes(b"\xff" * 1000)
            reply = self.http.post("/v1/models/load", json={"model": name})
            (folder / "model.safetensors").unlink()
        return refused(reply, reply.status_code)

    def fault_memory_pressure(self) -> str:
        """No more address space than the process has, while large requests arrive at once."""
        before = resource.prlimit(self.process.pid, resource.RLIMIT_AS)
        most_bytes = self.process.memory_info().vms + MIB
        bodies = [
            {**LONG, "messages": "word " * 1500, "max_tokens": 300, "n": 4},
            {**LONG, "messages": "word " * 8 * MIB},
            {
                **LONG,
                "messages": "word",
                "stop": ["x" * 1000] * 64,
                "n": 16,
                "logprobs": True,
                "top_logprobs": 20,
            },
        ]
        resource.prlimit(self.process.pid, resource.RLIMIT_AS, (most_bytes, before[1]))
        try:
            with ThreadPoolExecutor(9) as threads:
                posts = [threads.submit(self.http.post, CHAT, json=each) for each in bodies * 3]
                replies = [answered(post) for post in posts]
        finally:
            resource.prlimit(self.process.pid, resource.RLIMIT_AS, before)
        return str(Counter(replies))


def answered(post: Future[httpx.Response]) -> str:
    """How a request ended; without the memory to read it, the connection may be closed."""
    try:
        reply = post.result()
    except httpx.RemoteProtocolError:
        return "closed"
    return "200" if reply.status_code == 200 else refused(reply, reply.status_code)


def status_of(response: bytes, status: bytes) -> str:
    """The message of an error; a reset before it could be read is fine."""
    if not response:
        return "closed"
    assert response[9:12] == status, response[:200]
    return message_of(json.loads(response.partition(b"\r\n\r\n")[2]))


def refused(reply: httpx.Response, status: int) -> str:
    assert reply.status_code == status >= 400, reply.text
    return f"{status} {message_of(reply.json())}"


def message_of(body: Any) -> str:
    assert body["error"].keys() == {"message", "type", "param", "code"}, body
    return str(body["error"]["message"])[:100]


def is_survived(faults: Faults, fault: Callable[[], str | None], expected: str) -> bool:
    name = fault.__name__.removeprefix("fault_").replace("_", " ")
    try:
        found = fault()
        assert faults.answer() == expected, "another answer than before"
        faults.wait_until_idle()
    except (AssertionError, httpx.HTTPError, OSError) as error:
        print(f"FAULT: {name}: {type(error).__name__} {error}", flush=True)
        return False
    print(f"ok: {name}{f': {found}' if found else ''}", flush=True)
    return True


def main() -> int:
    with tempfile.NamedTemporaryFile("w") as keys:
        keys.write(KEY)
        keys.flush()
        flags = ("--api-key-file", keys.name, "--allow-load", "--max-queue", "64")
        with server_process(*flags) as (server, url):
            faults = Faults(server, url)
            expected = faults.answer()
            part = "_".join(sys.argv[1:])
            names = [name for name in dir(faults) if name.startswith("fault_") and part in name]
            found = [is_survived(faults, getattr(faults, name), expected) for name in names]
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())

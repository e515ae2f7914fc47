"""Sends hostile requests to a server, alone and in company, and says what came of them."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import select
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from multiprocessing.synchronize import Event

from support.hostile.request import HostileRequest
from support.hostile.server import Server

#: A request that has no answer by then hangs.
ANSWER_S = 120
#: Another address than that of the strangers, as Linux has them without being asked.
NEIGHBOUR = "127.0.0.2"
_CHUNK_BYTES = 2**18
_RESPONSE_ID = re.compile(rb'"id":"(resp_\w+)"')


@dataclass(frozen=True)
class Outcome:
    """How a request ended; status 0 is a closed connection, -1 no answer.

    Processor time and growth of the peak are those of the server, if it was sent alone.
    """

    name: str
    status: int
    received: bytes
    processor_s: float = 0.0
    grown_bytes: int = 0

    @property
    def is_refusal(self) -> bool:
        return self.status >= 400

    @property
    def fault(self) -> str | None:
        """What a server may never answer."""
        if self.status < 0:
            return "no answer"
        if self.status >= 500 and not (self.status == 503 and b"\r\nretry-after:" in self.received):
            return f"status {self.status}: {self.received[-300:]!r}"
        if self.name.startswith("head:"):  # not all of these are read as requests
            return None
        if self.status == 0:
            return "closed without an answer"
        if self.is_refusal and not _has_one_shape(self.received):
            return f"an error of another shape: {self.received[-300:]!r}"
        return None


def _has_one_shape(received: bytes) -> bool:
    try:
        return bool(json.loads(received.partition(b"\r\n\r\n")[2])["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return False


class Strangers:
    """Sends hostile requests, each over a connection of its own."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._last_response = ""

    def alone(self, requests: Iterable[HostileRequest]) -> Iterator[Outcome]:
        """One after another; what each costs is measured until the server rests again."""
        for each in requests:
            before_s, before_bytes = self._server.settled_s(), self._server.peak_bytes()
            found = self._outcome(each)
            used_s = self._server.settled_s() - before_s
            grown = self._server.peak_bytes() - before_bytes
            yield Outcome(found.name, found.status, found.received, used_s, grown)

    def at_once(self, requests: Sequence[HostileRequest], connections: int) -> list[Outcome]:
        with ThreadPoolExecutor(connections, initializer=_stand_back) as threads:
            return list(threads.map(self._outcome, requests))

    def _outcome(self, request: HostileRequest) -> Outcome:
        head, body = request.sent("localhost", self._last_response)
        try:
            received = _exchanged(self._server.address, (head, body))
        except TimeoutError:
            return Outcome(request.name, -1, b"")
        if found := _RESPONSE_ID.search(received[:2000]):
            self._last_response = found[1].decode()
        words = received[:40].split(b" ", 2)
        status = int(words[1]) if len(words) > 1 and words[1][:3].isdigit() else 0
        return Outcome(request.name, status, received[:3000])


def _exchanged(address: tuple[str, int], parts: Iterable[bytes]) -> bytes:
    """What the server sends until it closes the connection, also while it is being sent to.

    Raises TimeoutError.
    """
    left, received = [memoryview(each) for each in parts if each], b""
    deadline_s = time.monotonic() + ANSWER_S
    with socket.create_connection(address, timeout=ANSWER_S) as connection:
        connection.setblocking(False)
        while True:
            wait_s = deadline_s - time.monotonic()
            writing = [connection] if left else []
            can_read, can_write, _ = select.select([connection], writing, [], max(wait_s, 0))
            if not can_read and not can_write:
                raise TimeoutError
            try:
                if can_read:
                    if not (content := connection.recv(_CHUNK_BYTES)):
                        return received
                    received += content[: max(0, 10_000 - len(received))]
                elif can_write:
                    rest = left[0][connection.send(left[0][:_CHUNK_BYTES]) :]
                    left[:1] = [rest] if rest else []
            except ConnectionError:
                if not left:
                    return received
                left.clear()  # the answer may be there already


@dataclass
class Neighbour:
    """Somebody who asks the same short question of a server again and again.

    answers   texts of the replies; all are the same if the strangers change nothing
    """

    address: tuple[str, int]
    tokens: int = 64
    seconds: list[float] = field(default_factory=list)
    answers: set[str] = field(default_factory=set)
    statuses: Counter[int] = field(default_factory=Counter)

    def ask(self) -> None:
        body = json.dumps({
            "messages": "What is a KV cache?", "max_tokens": self.tokens, "temperature": 0,
            "ignore_eos": True,
        })  # fmt: skip
        connection = HTTPConnection(*self.address, timeout=ANSWER_S, source_address=(NEIGHBOUR, 0))
        start_s = time.perf_counter()
        headers = {"content-type": "application/json", "connection": "close"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        response = connection.getresponse()
        content = response.read()
        self.seconds.append(time.perf_counter() - start_s)
        connection.close()
        self.statuses[response.status] += 1
        if response.status == 200:
            self.answers.add(json.loads(content)["choices"][0]["message"]["content"])

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Asks in a process of its own meanwhile, as the strangers are busy in this one.

        Raises what went wrong there.
        """
        context = multiprocessing.get_context("spawn")
        begun, ended = context.Event(), context.Event()
        with ProcessPoolExecutor(1, context, _know_events, (begun, ended)) as process:
            work = process.submit(_ask_again, self.address, self.tokens)
            try:
                begun.wait(ANSWER_S)
                yield
            finally:
                ended.set()
            other = work.result()
        self.seconds += other.seconds
        self.answers |= other.answers
        self.statuses += other.statuses


#: Of the process of a neighbour: that it has begun to ask, and that it is to end.
_events: list[Event] = []


def _know_events(*events: Event) -> None:
    _events.extend(events)


def _ask_again(address: tuple[str, int], tokens: int) -> Neighbour:
    neighbour, (begun, ended) = Neighbour(address, tokens), _events
    begun.set()
    while not ended.is_set():
        neighbour.ask()
    return neighbour


def _stand_back() -> None:
    """Strangers have machines of their own: they take no processor from the server."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)

"""A client with many requests, and its neighbour: who is answered, and what is dropped."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

import httpx
import pytest
from running_server import CHAT, RunningServer, noting_thread, running, until

from mrs.grammar import request_fields
from mrs.server.background import SHORT_BYTES, num_threads
from mrs.server.endpoints import completions, tokens
from mrs.server.http.errors import ApiError
from mrs.server.http.exchange import Exchange
from mrs.server.replies.group import ReplyGroup
from mrs.server.replies.response_store import StoredResponse
from mrs.server.schemas import messages_request, responses_request
from mrs.server.settings import ServerSettings
from mrs.text import tokenizer as tokenizer_module

BUSY, NEIGHBOUR = "busy-key", "neighbour-key"
#: So many texts of one client are read at once.
AT_ONCE = num_threads() - 1
LARGE = "a b c d " * 1000
ENDLESS: dict[str, Any] = {"messages": "Hi", "max_tokens": 1900, "ignore_eos": True}


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningServer]:
    """A server with two keys, one running sequence, and two waiting ones."""
    settings = ServerSettings(api_keys=(BUSY, NEIGHBOUR), max_queue=2)
    with running(settings, max_seqs=1) as made:
        yield made


@pytest.fixture(scope="module")
def patient() -> Iterator[RunningServer]:
    """A server with two keys where many may wait."""
    with running(ServerSettings(api_keys=(BUSY, NEIGHBOUR), max_queue=200)) as made:
        yield made


class Client:
    """Sends a request, and does not wait for its response."""

    def __init__(self, server: RunningServer, path: str, body: Any, key: str = BUSY) -> None:
        content = json.dumps(body)
        self._socket = socket.create_connection(server.address, timeout=120)
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        fields = f"authorization: Bearer {key}\r\ncontent-length: {len(content)}\r\n\r\n"
        self._socket.sendall((head + fields + content).encode())

    def status(self) -> int:
        with self._socket.makefile("rb") as answer:
            return int(answer.readline().split()[1])

    def leave(self) -> None:
        self._socket.close()


def ask(server: RunningServer, path: str, body: Any, key: str = NEIGHBOUR) -> httpx.Response:
    return server.http.post(path, json=body, headers={"authorization": f"Bearer {key}"})


class Gate:
    """Lets texts of a busy client wait, and counts them."""

    def __init__(self) -> None:
        self.entered, self._lock, self._is_open = 0, threading.Lock(), threading.Event()

    def enter(self) -> None:
        with self._lock:
            self.entered += 1
        assert self._is_open.wait(120)

    def open(self) -> None:
        self._is_open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made, encode = Gate(), tokenizer_module.encode_ids

    def waiting(backend: Any, text: str, **more: Any) -> Any:
        if text.startswith("a b c"):
            made.enter()
        return encode(backend, text, **more)

    monkeypatch.setattr(tokenizer_module, "encode_ids", waiting)
    yield made
    made.open()


@pytest.mark.full
def test_a_neighbour_is_answered_while_a_hundred_large_requests_wait(
    patient: RunningServer, gate: Gate
) -> None:
    with ExitStack() as stack:
        stack.callback(gate.open)
        clients = [Client(patient, "/tokenize", {"prompt": LARGE}) for _ in range(100)]
        until(lambda: gate.entered == AT_ONCE)
        assert ask(patient, "/tokenize", {"prompt": "Hi"}).json()["count"] > 0
        assert ask(patient, CHAT, {"messages": "Hi", "max_tokens": 1}).status_code == 200
        assert gate.entered == AT_ONCE
    assert {client.status() for client in clients} == {200}
    assert gate.entered == 100


def test_requests_of_clients_that_left_are_read_no_further(
    patient: RunningServer, gate: Gate
) -> None:
    many = {"input": ["a b c d"] * 500}
    clients = [Client(patient, "/v1/embeddings", many) for _ in range(20)]
    until(lambda: gate.entered == AT_ONCE)
    for client in clients:
        client.leave()
    until(lambda: not patient.server.service._work._waiting)
    until(lambda: patient.server.models.default.users == 0)
    gate.open()
    until(lambda: not patient.server.service._work._running)
    assert gate.entered <= 6


@pytest.mark.full
def test_a_request_beyond_its_deadline_is_read_no_further(gate: Gate) -> None:
    with running(ServerSettings(request_timeout_s=0.3)) as server:
        reply = server.http.post("/v1/embeddings", json={"input": ["a b c d"] * 500})
        assert reply.status_code == 408
        gate.open()
        until(lambda: not server.server.service._work._running)
        assert gate.entered <= 2


def test_a_full_queue_of_texts_is_refused_with_a_time(shared: RunningServer, gate: Gate) -> None:
    clients = [Client(shared, "/tokenize", {"prompt": "a b c d"}) for _ in range(AT_ONCE)]
    until(lambda: gate.entered == AT_ONCE)
    clients += [Client(shared, "/tokenize", {"prompt": "a b c d"}) for _ in range(3)]
    until(lambda: len(shared.server.service._work._waiting) == 3)
    refused = ask(shared, "/tokenize", {"prompt": "a b c d"}, BUSY)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "queue_full"
    assert int(refused.headers["retry-after"]) >= 1
    assert ask(shared, "/tokenize", {"prompt": "Hi"}).status_code == 200
    gate.open()
    assert sorted(client.status() for client in clients) == [200] * (AT_ONCE + 2) + [429]


@pytest.mark.usefixtures("slow_steps")
def test_a_client_cannot_fill_the_queue_for_its_neighbour(shared: RunningServer) -> None:
    clients = []
    for count in range(1, 4):
        clients.append(Client(shared, CHAT, ENDLESS))
        until(lambda count=count: shared.server.service.num_replies == count)  # type: ignore[misc]
    assert ask(shared, CHAT, ENDLESS, BUSY).status_code == 429
    mine = Client(shared, CHAT, {"messages": "Hi", "max_tokens": 1}, NEIGHBOUR)
    assert clients[2].status() == 429
    until(lambda: shared.server.service.num_replies == 3)  # or the busy client's next is first
    clients[0].leave()
    assert mine.status() == 200
    clients[1].leave()
    shared.wait_until_idle()


def test_a_million_token_ids_too_many_are_refused_before_they_are_decoded(
    patient: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import msgspec

    monkeypatch.setattr(msgspec.json, "decode", lambda _: pytest.fail("it was decoded"))
    body = '{"prompt": [' + "1," * 5_000_000 + "1]}"
    headers = {"authorization": f"Bearer {NEIGHBOUR}", "content-type": "application/json"}
    refused = patient.http.post("/v1/completions", content=body, headers=headers)
    assert refused.status_code == 413, "what they would take is known by their commas"


def test_more_commas_than_are_decoded_are_refused_where_memory_is_not_limited() -> None:
    import msgspec

    body = b'{"prompt": [' + b"1," * 2**20 + b"1, 1]}"
    with pytest.raises(ApiError, match="commas") as raised:
        Exchange.decode(cast(Exchange, None), body, msgspec.Struct)  # before it looks at a request
    assert raised.value.status == 400


SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
TALK = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {**TALK, "guided_json": SCHEMA}),
        (
            CHAT,
            {**TALK, "response_format": {"type": "json_object", "schema": SCHEMA}, "stream": True},
        ),
        ("/v1/completions", {"prompt": "Hi", "json_schema": SCHEMA}),
        ("/v1/completions", {"prompt": "Hi", "echo": True}),
        ("/v1/messages", TALK),
        ("/v1/messages/count_tokens", TALK),
        ("/v1/messages", {**TALK, "output_format": {"type": "json_schema", "schema": SCHEMA}}),
        (
            "/v1/responses",
            {
                "input": "Hi",
                "text": {"format": {"type": "json_schema", "schema": SCHEMA}},
                "max_output_tokens": 16,
            },
        ),
        ("/detokenize", {"tokens": [300, 301]}),
    ],
)
def test_what_may_be_large_is_read_and_written_in_turns_and_not_on_the_event_loop(
    shared: RunningServer, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    """A schema of 4 MB would take a tenth of a second, in which nobody else is answered."""
    threads: list[str] = []
    noting = partial(noting_thread, threads)
    for module, name in (
        (request_fields, "_json"),
        (messages_request, "chat_messages"),
        (responses_request, "chat_messages"),
        (completions, "raw_json"),
        (tokens, "raw_json"),
    ):
        monkeypatch.setattr(module, name, noting(getattr(module, name)))
    reply = ask(shared, path, body)
    assert reply.status_code == 200, reply.text
    assert threads
    assert all(name.startswith("mrs-request") for name in threads)


@pytest.mark.parametrize("is_long", [False, True])
def test_only_large_bodies_are_long_work(
    shared: RunningServer, monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    """A short request does not wait for processors behind replies; a long text does."""
    threads: list[str] = []
    noting = noting_thread(threads, tokenizer_module.encode_ids)
    monkeypatch.setattr(tokenizer_module, "encode_ids", noting)
    text = "a b c d " * (SHORT_BYTES // 4 if is_long else 10)
    assert ask(shared, "/tokenize", {"prompt": text}).status_code == 200
    assert threads
    assert all(("long" in name) is is_long for name in threads)


def test_a_response_with_many_candidates_is_encoded_once_and_not_on_the_event_loop(
    shared: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    monkeypatch.setattr(StoredResponse, "of", noting_thread(threads, StoredResponse.of))
    asked = {"input": "Hi", "top_logprobs": 20, "max_output_tokens": 8}
    reply = ask(shared, "/v1/responses", asked)
    assert len(threads) == 1
    assert threads[0].startswith("mrs-request")
    path = f"/v1/responses/{reply.json()['id']}"
    stored = shared.http.get(path, headers={"authorization": f"Bearer {NEIGHBOUR}"})
    assert stored.content == reply.content


@pytest.mark.full
def test_many_replies_to_a_request_start_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each copies the prompt and the grammar: with a long prompt, all would take a tenth of a
    second, in which nobody else is heard."""
    started, pieces = list[object](), list[int]()
    add, sleep = ReplyGroup.add, asyncio.sleep

    def noting(group: ReplyGroup, start: Any) -> None:
        started.append(start)
        add(group, start)

    async def turn(delay_s: float, *more: Any) -> Any:
        if delay_s == 0:
            pieces.append(len(started))
        return await sleep(delay_s, *more)

    monkeypatch.setattr(ReplyGroup, "add", noting)
    monkeypatch.setattr("mrs.server.service.asyncio.sleep", turn)
    with running() as server:
        assert server.chat(n=40, max_tokens=1).status_code == 200
    assert len(started) == 40
    waits = [0, *sorted(set(pieces)), 40]
    assert max(after - before for before, after in itertools.pairwise(waits)) <= 8

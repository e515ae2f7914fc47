"""Requests share a planned amount of memory: what has no room in it waits or is refused."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import pytest
from running_server import CHAT, RunningServer, running, until

from mrs.plan.memory.server_budget import server_budget
from mrs.request import ServerLoad
from mrs.server.http.bodies import decoded_bytes
from mrs.server.http.exchange import Exchange
from mrs.server.memory import ServerMemory
from mrs.server.schemas.chat_request import ChatRequest
from mrs.server.settings import ServerSettings
from mrs.units import MIB
from outside.serving import server_process
from support.suites import first
from support.varied_requests import PROC, peak_bytes, resident_bytes, send_all, varied_requests

REQUESTS = 100
UNITS = {
    "lists": "[]",
    "nested lists": "[[[[]]]]",
    "objects": "{}",
    "nested objects": '{"a":{"a":{}}}',
    "numbers": "1000",
    "fractions": "1.5",
    "texts": '"ab"',
    "wide texts": '"\u597d"',
    "nulls": "null",
}
PLACES = {
    "an unknown field": '{"messages":"hi","x":[%s]}',
    "tools": '{"messages":"hi","chat_template_kwargs":{"x":[%s]}}',
}


def scope() -> dict[str, Any]:
    return {
        "type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b"",
        "state": {"request_id": "1"},
    }  # fmt: skip


def decoding_peak(body: bytes) -> int:
    """The most that decoding a chat's body takes, as Python's allocator counts it."""

    async def nothing(*_: Any) -> Any:
        raise NotImplementedError

    exchange = Exchange(scope(), nothing, nothing)
    tracemalloc.start()
    try:
        request = exchange.decode(body, ChatRequest)
        assert request is not None
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.few(4)
@pytest.mark.values
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_the_memory_of_a_body_is_known_before_it_is_decoded(unit: str, place: str) -> None:
    body = (place % ",".join([unit] * (200_000 // len(unit)))).encode()
    assert decoding_peak(body) <= decoded_bytes(body)


@pytest.mark.parametrize("text", ["a" * MIB, "\u597d" + "a" * MIB, "\U0001f600" + "a" * MIB])
@pytest.mark.parametrize("is_ascii", [True, False])
def test_the_memory_of_a_text_is_known_before_it_is_decoded(text: str, is_ascii: bool) -> None:
    body = json.dumps({"messages": text}, ensure_ascii=is_ascii).encode()
    assert decoding_peak(body) <= decoded_bytes(body) + 2**16


def test_keys_of_objects_are_counted() -> None:
    keys = ",".join(f'"{number}":{number}' for number in range(20_000))
    body = f'{{"messages":"hi","x":{{{keys}}}}}'.encode()
    assert decoding_peak(body) <= decoded_bytes(body)


@pytest.mark.few(1)
@pytest.mark.parametrize("unit", first(2, ["word ", "\U0001f600", " ", "\n\t", "é"]))
def test_the_memory_of_a_large_body_is_known_in_little_processor_time(unit: str) -> None:
    """Of 40 MB: looking for a sign by a regular expression took 0.6 s."""
    body = (unit * (40 * 10**6 // len(unit.encode()))).encode()
    used_s = []
    for _ in range(3):
        start_s = time.thread_time()
        decoded_bytes(body)
        used_s.append(time.thread_time() - start_s)
    assert min(used_s) < 0.4


def test_signs_and_escapes_are_counted_wherever_a_body_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bodies = ['["\\u00e9","a"]', '{"a":[1,2]}', '["日本","\U0001f600"]', "", ",,,,"]
    whole = [decoded_bytes(each.encode()) for each in bodies]
    for size in range(1, 8):
        monkeypatch.setattr("mrs.server.http.bodies._PIECE_BYTES", size)
        assert [decoded_bytes(each.encode()) for each in bodies] == whole


@pytest.fixture(scope="module")
def small() -> Iterator[RunningServer]:
    """A server with room for two of the largest bodies of a client, and for one of another."""
    with running(ServerSettings(max_body_bytes=MIB)) as made:
        yield made


@contextmanager
def unfinished(server: RunningServer, size_bytes: int = MIB) -> Iterator[socket.socket]:
    """A connection that has sent all of a body but its last byte."""
    with socket.create_connection(server.address, timeout=120) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size_bytes}\r\n\r\n"
        connection.sendall(head.encode() + b" " * (size_bytes - 1))
        yield connection


def received(connection: socket.socket) -> bytes:
    """All that the server sends before it closes its side."""
    return b"".join(iter(lambda: connection.recv(4096), b""))


def held_bytes(server: RunningServer) -> int:
    return server.server.memory.bodies.used_bytes


def test_bodies_that_are_read_share_their_memory(small: RunningServer) -> None:
    most = small.server.memory.bodies.most_bytes
    assert most is not None
    until(lambda: held_bytes(small) == 0)
    with ExitStack() as others:
        for count in (1, 2):
            others.enter_context(unfinished(small))
            until(lambda count=count: held_bytes(small) >= count * MIB)  # type: ignore[misc]
        with unfinished(small) as refused:
            answer = received(refused)
        assert b" 503 " in answer.split(b"\r\n")[0]
        assert b"retry-after: 1" in answer
        assert b'"no_memory_now"' in answer
        assert held_bytes(small) <= most
        assert small.chat().status_code == 200  # what is small has room


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one address of their own")
def test_the_bodies_of_one_address_leave_room_to_another(small: RunningServer) -> None:
    until(lambda: held_bytes(small) == 0)
    text = json.dumps({"messages": "x" * 500_000}).encode()
    transport = httpx.HTTPTransport(local_address="127.0.0.2")
    with ExitStack() as others, httpx.Client(transport=transport, timeout=120) as neighbour:
        for count in (1, 2):
            others.enter_context(unfinished(small))
            until(lambda count=count: held_bytes(small) >= count * MIB)  # type: ignore[misc]
        with unfinished(small) as refused:
            assert b" 503 " in received(refused).split(b"\r\n")[0]
        answer = neighbour.post(f"{small.url}{CHAT}", content=text)
        assert answer.json()["error"]["code"] == "context_length_exceeded"
    until(lambda: held_bytes(small) == 0)


def test_a_slow_body_leaves_its_room_to_a_new_one(
    small: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrs.server.http.bodies._GRACE_S", 0.0)
    with ExitStack() as others:
        slow = others.enter_context(unfinished(small))
        until(lambda: held_bytes(small) >= MIB)
        others.enter_context(unfinished(small))
        until(lambda: held_bytes(small) >= 2 * MIB)
        text = "a b " * 200_000  # it has room for a moment, and is refused as a text
        assert small.chat(messages=text).json()["error"]["code"] == "context_length_exceeded"
        assert b" 503 " in received(slow).split(b"\r\n")[0]
    until(lambda: held_bytes(small) == 0)


def test_a_body_that_never_has_room_is_too_large(small: RunningServer) -> None:
    body = b'{"messages":"hi","x":[' + b",".join([b"{}"] * 200_000) + b"]}"
    answer = small.http.post(CHAT, content=body)
    assert answer.status_code == 413
    assert "memory: send less at once" in answer.json()["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"


def test_a_request_gives_its_memory_back_when_it_is_answered(small: RunningServer) -> None:
    for _ in range(20):
        small.chat(messages="x" * 100_000)
    until(lambda: held_bytes(small) == 0)


#: A conversation whose old turns are dropped, in each interface.
OLD = [{"role": role, "content": "word " * 2000} for role in ("user", "assistant")] * 30
LONG = [*OLD, {"role": "user", "content": "Hi"}]
CUT: dict[str, dict[str, Any]] = {
    CHAT: {"messages": LONG, "truncate_sequence": True, "max_tokens": 900},
    "/v1/messages": {"messages": LONG, "truncate_sequence": True, "max_tokens": 900},
    "/v1/responses": {"input": LONG, "truncation": "auto", "max_output_tokens": 900},
}


@pytest.mark.parametrize("path", first(1, CUT))
def test_a_request_gives_the_memory_of_its_text_back_before_it_is_answered(
    slow_steps: None, path: str
) -> None:
    fields = {**CUT[path], "ignore_eos": True, "stream": True, "store": False}
    content = json.dumps(fields).encode()
    with running(max_seqs=1) as server:
        server.http.post(path, content=content.replace(b"900", b"1"))  # imports what it needs
        tracemalloc.start()
        try:
            with server.http.stream("POST", path, content=content) as reply:
                assert reply.status_code == 200, reply.read()
                chunks = reply.iter_raw()
                next(chunks)
                assert held_bytes(server) < 50_000
                taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert taken < len(content) / 2


def test_a_response_that_is_to_be_stored_keeps_the_memory_of_its_items(slow_steps: None) -> None:
    body = {**CUT["/v1/responses"], "ignore_eos": True, "stream": True}
    size = len(json.dumps(LONG))
    with (
        running(max_seqs=1) as server,
        server.http.stream("POST", "/v1/responses", json=body) as reply,
    ):
        assert reply.status_code == 200, reply.read()
        chunks = reply.iter_raw()
        next(chunks)
        assert size < held_bytes(server) < 1.5 * size
        reply.close()
        until(lambda: held_bytes(server) == 0)


@pytest.mark.full
def test_prompts_that_run_and_wait_share_their_memory(slow_steps: None) -> None:
    long: dict[str, Any] = {"prompt": "a b c d " * 100, "max_tokens": 60, "ignore_eos": True}
    with running(max_seqs=1) as server, ThreadPoolExecutor(4) as pool:
        plan = server.model.plan
        assert plan.budget is not None
        server.model.plan = replace(plan, budget=replace(plan.budget, prompts=96 * 1200))

        def post(_: int = 0, **more: Any) -> httpx.Response:
            return httpx.post(f"{server.url}/v1/completions", json={**long, **more}, timeout=120)

        answers = list(pool.map(post, range(4)))
        assert {each.status_code for each in answers} == {200, 429}
        refused = next(each for each in answers if each.status_code == 429)
        assert refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) >= 1
        many = post(n=16)
        assert many.status_code == 400
        assert many.json()["error"]["code"] == "too_many_replies"
        server.wait_until_idle()
        assert post().status_code == 200


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one address of their own")
def test_prompts_of_one_client_leave_memory_to_those_of_another(slow_steps: None) -> None:
    long: dict[str, Any] = {"prompt": "a b c d " * 100, "ignore_eos": True}
    with running(max_seqs=1) as server, ThreadPoolExecutor(16) as pool:
        url = f"{server.url}/v1/completions"

        def ask(address: str, max_tokens: int) -> httpx.Response:
            own = httpx.HTTPTransport(local_address=address)
            with httpx.Client(transport=own, timeout=120) as client:
                return client.post(url, json={**long, "max_tokens": max_tokens})

        tokens = ask("127.0.0.1", 1).json()["usage"]["prompt_tokens"]
        plan = server.model.plan
        assert plan.budget is not None
        most_bytes = 96 * (10 * tokens + tokens // 2)
        server.model.plan = replace(plan, budget=replace(plan.budget, prompts=most_bytes))
        crowd = [pool.submit(ask, "127.0.0.1", 90) for _ in range(16)]
        replies = server.server.service
        until(lambda: replies.num_replies + sum(each.done() for each in crowd) == len(crowd))
        assert ask("127.0.0.2", 2).status_code == 200
        assert {each.result().status_code for each in crowd} == {200, 429}


@pytest.mark.full
def test_unread_replies_share_their_memory(slow_steps: None) -> None:
    """Those that nobody reads end, however little each has; those that are read go on."""
    fields = {"messages": "Hi", "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
    body = json.dumps({**fields, "stream": True, "max_tokens": 1900}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    with running(send_buffer_bytes=8192) as server, socket.socket() as stalled:
        server.server.memory.unread.most_bytes = 1_200_000
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(server.address)
        stalled.sendall(head.encode() + body)
        until(lambda: server.stats.running > 0)
        assert server.chat(**fields, max_tokens=50).status_code == 200
        until(lambda: server.stats[:2] == (0, 0))
        assert server.stats.computed_tokens < 1900
        until(lambda: not server.server.memory.unread.is_full)


RESPOND: dict[str, Any] = {"input": "Hi", "ignore_eos": True, "max_output_tokens": 200}
TALK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi"}],
    "ignore_eos": True,
    "max_tokens": 200,
}


def test_whole_replies_share_the_memory_of_what_they_are_made_of() -> None:
    fields: dict[str, Any] = {"ignore_eos": True, "max_tokens": 200}
    scored = {"top_logprobs": 20}
    with running() as server:
        unread = server.server.memory.unread
        for most_bytes, path, body in (
            (400_000, CHAT, {**TALK, **scored, "logprobs": True}),
            (400_000, "/v1/responses", {**RESPOND, **scored}),
            (2_000, "/v1/responses", RESPOND),
            (2_000, "/v1/messages", TALK),
        ):
            unread.most_bytes = most_bytes
            refused = server.http.post(path, json=body)
            assert refused.status_code == 503, path
            assert "memory" in refused.json()["error"]["message"]
            assert refused.headers["retry-after"] == "1"
            server.wait_until_idle()
            until(lambda: unread.used_bytes == 0)
        unread.most_bytes = 400_000
        assert server.chat(**fields).status_code == 200
        until(lambda: unread.used_bytes == 0)


def test_the_memory_of_a_server_is_what_its_plan_allows() -> None:
    with running() as server:
        memory, budget = server.server.memory, server.model.plan.budget
        assert budget is not None
        assert memory.bodies.most_bytes == budget.bodies == 200 * MIB
        assert memory.responses.most_bytes == budget.responses
        assert memory.unread.most_bytes == budget.unread


class Model:
    """Stands for a loaded one."""


def test_the_models_of_a_server_share_the_largest_of_each_part() -> None:
    """Whichever was loaded last; what only one of them needs stays as it is."""
    memory, sees, reads = ServerMemory(), Model(), Model()
    large = server_budget(ServerLoad(50 * MIB, 1024), 32, 2**17, None)
    large = replace(large, decoding=800 * MIB, decoded=9 * MIB)
    small = server_budget(ServerLoad(MIB, 16), 1, 64, None)
    for model, budget in ((sees, large), (reads, small)):
        memory.limit(model, budget)
    assert memory.bodies.most_bytes == large.bodies
    assert memory.unread.most_bytes == large.unread
    assert memory.requests.texts.most_bytes == large.texts
    assert memory.requests.media.room.most_bytes == large.decoding
    assert memory.requests.media.decoded.max_bytes == large.decoded
    del sees, model
    memory.limit(reads, small)
    assert memory.bodies.most_bytes == small.bodies


def test_servers_of_one_process_have_limits_of_their_own() -> None:
    one, other = ServerMemory(), ServerMemory()
    load = ServerLoad(50 * MIB, 1024)
    one_model, other_model = Model(), Model()
    one.limit(one_model, replace(server_budget(load, 32, 2**17, None), decoding=MIB))
    other.limit(other_model, replace(server_budget(load, 1, 64, None), decoding=2 * MIB))
    assert one.requests.media.room.most_bytes == MIB
    assert other.requests.media.room.most_bytes == 2 * MIB
    assert one.requests.texts.most_bytes != other.requests.texts.most_bytes
    one.requests.media.room.take(MIB, "images")
    assert other.requests.media.room.used_bytes == 0


def test_models_of_a_server_share_its_room_for_texts() -> None:
    with running() as server:
        assert server.model.tokenizer._room is server.server.memory.requests.texts


def test_a_request_has_no_base64_once_its_images_are_read() -> None:
    file = bytes(3 * MIB)
    url = "data:image/png;base64," + base64.b64encode(file).decode()
    part = {"type": "image_url", "image_url": {"url": url}}
    body = json.dumps({"messages": [{"role": "user", "content": [part]}]}).encode()
    tracemalloc.start()
    try:
        request = msgspec.json.decode(body, type=ChatRequest)
        (message,) = request.take_conversation(allow_image_urls=False, check_media=lambda *_: None)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert message["images"][0].content == file
    assert kept < len(file) + MIB


def planned_bytes(model: str) -> int:
    command = [sys.executable, "-m", "mrs_cli", "plan", "run", "-m", model, "--dry-run", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    planned = json.loads(run.stdout)["server"]["host_bytes"]
    assert isinstance(planned, int)
    return planned


@pytest.mark.skipif(not PROC.exists(), reason="only Linux counts a process's memory so")
@pytest.mark.full  # core has the hostile requests, within a limit of the kernel
def test_memory_stays_below_what_the_plan_says() -> None:
    """Seen from outside, over requests of all kinds; `tests/bench/server_memory.py` has more."""
    most = 0
    with server_process("-m", "demo-vision") as (process, url):

        def note(number: int) -> None:
            nonlocal most
            if number % 4 == 0:
                most = max(most, resident_bytes(process.pid))

        statuses = send_all(url, varied_requests(REQUESTS, images=True), note)
        most = max(most, peak_bytes(process.pid))
    assert most < planned_bytes("demo-vision")
    assert not {status for status in statuses if status >= 500} - {503}
    assert statuses[200] > REQUESTS / 2

"""The queue, cancelled requests, deadlines, and the end of the server."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from running_server import CHAT, RunningServer, load, running, until

from mrs.engine.worker import Worker
from mrs.errors import NotReadable
from mrs.events import LoadProgress
from mrs.server.settings import ServerSettings
from support.waiting import PATIENCE_S

ENDLESS: dict[str, Any] = {"messages": "Hi", "max_tokens": 1900, "ignore_eos": True}
LONG_PROMPT = "word " * 1800


@pytest.fixture(scope="module")
def narrow() -> Iterator[RunningServer]:
    """One sequence runs and two wait."""
    with running(ServerSettings(max_queue=2), max_seqs=1) as made:
        yield made


class Client:
    """A client that can vanish: it sends a request, and reads nothing."""

    def __init__(self, server: RunningServer, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self._socket = socket.create_connection(server.address)
        head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
        self._socket.sendall(head.encode() + content)

    def vanish(self) -> None:
        """Close at once, with a reset, as the end of a killed process can be."""
        linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._socket.close()

    def leave(self) -> None:
        self._socket.close()


@pytest.mark.few(3)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"messages": LONG_PROMPT, "max_tokens": 200}])
@pytest.mark.usefixtures("slow_steps")
def test_a_client_that_leaves_frees_what_runs_and_waits(
    narrow: RunningServer, stream: bool, fields: dict[str, Any]
) -> None:
    client = Client(narrow, {**ENDLESS, "stream": stream, **fields})
    replies = fields.get("n", 1)
    until(lambda: narrow.server.service.num_replies == replies and narrow.stats.running == 1)
    if replies == 1:
        waiting = Client(narrow, {**ENDLESS, "stream": stream})
        until(lambda: narrow.stats.waiting == 1)
        waiting.vanish()
        until(lambda: narrow.stats[:2] == (1, 0))
    (client.vanish if stream else client.leave)()
    until(lambda: narrow.stats[:2] == (0, 0))
    narrow.wait_until_idle()
    assert narrow.chat().status_code == 200


@pytest.mark.usefixtures("slow_steps")
def test_a_full_queue_refuses_with_the_time_to_wait(narrow: RunningServer) -> None:
    clients = [Client(narrow, ENDLESS) for _ in range(3)]
    until(lambda: narrow.server.service.num_replies == 3)
    reply = narrow.chat()
    assert reply.status_code == 429
    assert reply.json()["error"]["type"] == "rate_limit_error"
    assert 1 <= int(reply.headers["retry-after"]) <= 120
    with pytest.raises(openai.RateLimitError):
        narrow.openai().chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "Hi"}]
        )
    for client in clients:
        client.leave()
    narrow.wait_until_idle()


def test_more_replies_than_ever_fit_are_refused_for_good(narrow: RunningServer) -> None:
    reply = narrow.chat(n=4)
    assert reply.status_code == 400
    assert narrow.chat(n=3).status_code == 200


def test_many_clients_get_a_reply_or_a_429(narrow: RunningServer) -> None:
    async def ask() -> list[int]:
        async with httpx.AsyncClient(base_url=narrow.url, timeout=PATIENCE_S) as client:
            body = {"messages": "Hi", "max_tokens": 3}
            replies = await asyncio.gather(*(client.post(CHAT, json=body) for _ in range(30)))
        return [reply.status_code for reply in replies]

    found = asyncio.run(ask())
    assert set(found) <= {200, 429}
    assert found.count(200) >= 3


@pytest.mark.usefixtures("slow_steps")
def test_a_request_beyond_its_deadline_ends() -> None:
    with running(ServerSettings(request_timeout_s=0.3)) as server:
        reply = server.http.post(CHAT, json=ENDLESS)
        assert reply.status_code == 408
        assert reply.headers["x-should-retry"] == "false"
        streamed = server.http.post(CHAT, json={**ENDLESS, "stream": True})
        *_, last, done, _ = streamed.text.split("\n\n")
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
        assert done == "data: [DONE]"
        server.wait_until_idle()


@pytest.mark.full
def test_the_gap_between_tokens_bounds_the_prompts_of_others() -> None:
    """While a reply runs, a step takes few tokens of a long prompt; without one, it takes all."""
    sizes: list[int] = []
    forward = Worker.forward

    def noting(worker: Worker, batch: Any) -> Any:
        sizes.append(sum(num_tokens for _, num_tokens in batch))
        time.sleep(0.002 + sizes[-1] * 0.0004)
        return forward(worker, batch)

    with pytest.MonkeyPatch.context() as patch, running(target_gap_s=0.02) as server:
        patch.setattr(Worker, "forward", noting)
        assert server.chat(messages="word " * 600).status_code == 200
        assert max(sizes) > 300
        client = Client(server, {**ENDLESS, "stream": True})
        until(lambda: server.stats.running == 1)
        assert server.chat(messages="other " * 300).status_code == 200
        sizes.clear()
        assert server.chat(messages="third " * 300).status_code == 200
        assert max(sizes) < 100
        client.leave()
        server.wait_until_idle()


def test_the_server_says_that_it_is_loading(tmp_path: Any) -> None:
    goes_on = threading.Event()

    def slowly(request: Any, on_progress: Any, memory: Any) -> Any:
        on_progress(LoadProgress("cpu", 25, 100))
        assert goes_on.wait(PATIENCE_S)
        return load(request, on_progress, memory)

    with running(load=slowly, wait=False) as server:
        until(lambda: server.server.models.default.progress == 0.25)
        for path in ("/health", "/ready"):
            reply = server.http.get(path)
            assert reply.status_code == 503
            assert reply.headers["retry-after"]
            assert reply.json()["error"]["code"] == "model_loading"
            assert "25%" in reply.json()["error"]["message"]
        assert server.http.get("/v1/models").json()["data"][0]["status"] == "loading"
        assert server.http.get("/metrics").status_code == 200
        goes_on.set()
        until(lambda: server.http.get("/ready").status_code == 200)
        assert server.http.get("/health").json() == {"status": "ok"}
        assert server.chat().status_code == 200


def test_requests_wait_for_the_first_model_as_many_as_may_wait() -> None:
    goes_on = threading.Event()

    def slowly(request: Any, on_progress: Any, memory: Any) -> Any:
        assert goes_on.wait(PATIENCE_S)
        return load(request, on_progress, memory)

    settings = ServerSettings(max_queue=2, max_body_bytes=2**16)
    with running(settings, slowly, wait=False) as server, ThreadPoolExecutor(2) as clients:
        slot = server.server.models.default
        waiting = [clients.submit(server.chat) for _ in range(2)]
        try:
            until(lambda: len(slot.waiting) == 2)
            assert server.chat().status_code == 429
            too_early = server.chat(messages="a" * 2**15)
            assert too_early.status_code == 413, "no plan has room for it yet"
        finally:
            goes_on.set()
        assert [each.result().status_code for each in waiting] == [200, 200]
        assert server.chat(messages="a" * 2**15).status_code == 400, "it has; the context has not"


def test_weights_can_be_quantized_anew(server: RunningServer) -> None:
    with running() as own:
        before = own.model.plan.weight_bytes()
        reply = own.http.post("/re_isq", json={"ggml_type": "Q8_0"})
        assert reply.status_code == 200, reply.text
        assert sum(own.model.plan.weight_bytes().values()) < sum(before.values())
        assert own.chat().status_code == 200
        wrong = own.http.post("/re_isq", json={"ggml_type": "q9z"})
        assert wrong.status_code == 400
        assert wrong.json()["error"]["param"] == "ggml_type"
        assert own.chat().status_code == 200


@pytest.mark.full
def test_weights_that_are_quantized_again_at_once_are_summarized() -> None:
    goes_on = threading.Event()

    def slowly(request: Any, on_progress: Any, memory: Any) -> Any:
        assert request.isq is None or goes_on.wait(PATIENCE_S)
        return load(request, on_progress, memory)

    with running(load=slowly) as own, ThreadPoolExecutor(2) as clients:
        body = {"ggml_type": "q8_0"}
        replies = [clients.submit(own.http.post, "/re_isq", json=body) for _ in range(2)]
        until(lambda: len(own.server.models._tasks) == 2)
        goes_on.set()
        assert all(reply.result().json()["summary"] for reply in replies)


def test_running_replies_are_drained_and_new_requests_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stops, forward = threading.Event(), Worker.forward

    def held(worker: Worker, batch: Any) -> Any:
        assert stops.wait(PATIENCE_S)
        return forward(worker, batch)

    with running(ServerSettings(drain_timeout_s=PATIENCE_S)) as server:
        found: list[httpx.Response] = []
        monkeypatch.setattr(Worker, "forward", held)
        thread = threading.Thread(target=lambda: found.append(server.chat(max_tokens=30, n=2)))
        thread.start()
        until(lambda: server.stats.running > 0)
        with httpx.Client(base_url=server.url) as other:
            assert other.get("/health").status_code == 200
            server.server.stop()
            until(lambda: bool(server.said))
            assert "1 request is running" in server.said[-1]
            stops.set()
        thread.join(PATIENCE_S)
        assert found[0].status_code == 200
        assert found[0].json()["usage"]["completion_tokens"] > 20
        until(lambda: is_closed(server.url))  # the server looks for the signal ten times a second


def is_closed(url: str) -> bool:
    try:
        httpx.get(f"{url}/health")
    except httpx.TransportError:
        return True
    return False


@pytest.mark.usefixtures("slow_steps")
def test_replies_beyond_the_drain_time_end_with_an_error() -> None:
    with running(ServerSettings(drain_timeout_s=0.2)) as server:
        found: list[str] = []
        body = {**ENDLESS, "stream": True}
        thread = threading.Thread(
            target=lambda: found.append(server.http.post(CHAT, json=body).text)
        )
        thread.start()
        until(lambda: server.stats.running > 0)
        server.server.stop()
        thread.join(PATIENCE_S)
        *_, last, done, _ = found[0].split("\n\n")
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert done == "data: [DONE]"


@pytest.mark.full
def test_a_prompt_that_is_read_beyond_the_drain_time_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def read_slowly(*_: Any, **__: Any) -> Any:
        has_begun.set()
        may_end.wait(PATIENCE_S)

    with running(ServerSettings(drain_timeout_s=0.2)) as server:
        monkeypatch.setattr(server.model.prompts, "chat", read_slowly)
        found: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: found.append(server.chat()))
        thread.start()
        assert has_begun.wait(PATIENCE_S)
        server.server.stop()
        thread.join(PATIENCE_S / 2)
        may_end.set()
        assert found[0].json()["error"]["code"] == "shutting_down"


@pytest.mark.full
@pytest.mark.usefixtures("slow_steps")
def test_replies_end_with_an_error_if_the_process_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a laptop that sleeps: at its end all times to wait are over."""
    monkeypatch.setattr("mrs.server.serve._LAST_SECONDS", 1.5)
    with running(ServerSettings(drain_timeout_s=0.8)) as server:
        found: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: found.append(server.chat(**ENDLESS)))
        thread.start()
        until(lambda: server.stats.running > 0)
        server.server.stop()
        loop = server.server._loop
        loop.call_soon_threadsafe(loop.call_later, 0.4, time.sleep, 3.0)
        thread.join(PATIENCE_S)
        assert found[0].json()["error"]["code"] == "shutting_down"


@pytest.mark.full
def test_a_reader_that_stalls_is_left_without_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mrs.server.serve._LAST_SECONDS", 0.2)
    settings = ServerSettings(drain_timeout_s=0)
    with running(settings, send_buffer_bytes=8192) as server, socket.socket() as connection:
        body = json.dumps({**ENDLESS, "stream": True, "n": 4, "logprobs": True}).encode()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(server.address)
        start = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(start.encode() + body)
        until(lambda: server.stats.computed_tokens > 1000)
        server.server.stop()
        until(lambda: not server.server.service.num_requests)
    assert caplog.messages == []


def test_a_model_that_fails_to_load_ends_the_server() -> None:
    from mrs.server.http.listener import bind
    from mrs.server.log.lines import RequestLog
    from mrs.server.models.slot import ModelSlot
    from mrs.server.serve import Server

    def fail(request: Any, on_progress: Any, memory: Any) -> Any:
        raise NotReadable("the model is broken")

    from running_server import DEMO

    with bind("127.0.0.1", 0) as listener:
        log = RequestLog(lambda _: None, as_json=False)
        slots = [ModelSlot(DEMO)]
        server = Server(slots, ServerSettings(), listener, fail, lambda _: None, log)
        with pytest.raises(NotReadable, match="broken"):
            server.run()

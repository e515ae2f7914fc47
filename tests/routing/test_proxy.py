"""`mrs route`: answers are those of the servers behind it, whichever of them are there."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from mrs.routing.front import FrontLimits
from mrs.routing.proxy import Proxy
from support.waiting import PATIENCE_S, until

CHAT = "/v1/chat/completions"


class Server:
    """A server that answers with its name and what it was sent, or as `answers` says by path."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.answers: dict[str, Callable[[Send], Any]] = {}
        self.bodies: list[bytes] = []
        self.heads: list[dict[bytes, bytes]] = []
        self.left = threading.Event()

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/ready":
            await start(send, 200, b"{}")
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.bodies.append(body)
        self.heads.append(dict(scope["headers"]))
        if scope["path"] in self.answers:
            try:
                await self.answers[scope["path"]](send)
            except asyncio.CancelledError:
                self.left.set()
                raise
            return
        query = scope["query_string"].decode()
        answer = {"name": self.name, "path": scope["path"], "query": query}
        await start(send, 200, json.dumps(answer).encode())


async def start(send: Send, status: int, body: bytes, *, more: bool = False) -> None:
    headers = [(b"content-type", b"application/json"), (b"x-server", b"yes")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": more})


def answering(status: int, body: bytes = b"{}") -> Callable[[Send], Any]:
    async def answer(send: Send) -> None:
        await start(send, status, body)

    return answer


@contextmanager
def running(app: Any, *, lifespan: str = "off") -> Iterator[str]:
    config = uvicorn.Config(app, log_config=None, lifespan=lifespan, interface="asgi3")  # type: ignore[arg-type]
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            until(lambda: server.started)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)


class Fleet:
    def __init__(self, client: httpx.Client, servers: dict[str, Server], lines: list[str]) -> None:
        self.client, self.servers, self.lines = client, servers, lines

    def ask(self, text: str, *, key: str = "", **fields: object) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": text}], **fields}
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return self.client.post(CHAT, json=body, headers=headers)


@contextmanager
def fleet(names: str = "ab", limits: FrontLimits | None = None) -> Iterator[Fleet]:
    lines: list[str] = []
    servers = {name: Server(name) for name in names}
    with ExitStack() as stack:
        urls = [stack.enter_context(running(each.app)) for each in servers.values()]
        app = Proxy(urls, lines.append, limits).app
        url = stack.enter_context(running(app, lifespan="on"))
        yield Fleet(stack.enter_context(httpx.Client(base_url=url)), servers, lines)


def test_an_answer_is_that_of_the_server() -> None:
    with fleet("a") as found:
        answer = found.client.post(f"{CHAT}?x=%2F", content=b"{}", headers={"x-mine": "1"})
        assert answer.json() == {"name": "a", "path": CHAT, "query": "x=%2F"}
        assert answer.headers["x-server"] == "yes"
        head = found.servers["a"].heads[0]
        assert head[b"x-mine"] == b"1"
        assert found.servers["a"].bodies == [b"{}"]


def test_a_conversation_stays_where_it_is() -> None:
    with fleet() as found:
        long = "What is it? " * 2000
        names = [found.ask(long, max_tokens=n).json()["name"] for n in range(4)]
        assert len(set(names)) == 1
        for number in range(6):
            found.ask(f"{number}" * 20_000)
        said = found.client.get("/replicas").json()
        assert said["cached_tokens"] > said["prompt_tokens"] / 4
        assert sum(each["requests"] for each in said["replicas"]) == 10
        assert all(each["running"] == 0 for each in said["replicas"])


@pytest.mark.parametrize("status", [404, 503])
def test_another_server_is_asked_if_one_cannot_answer(status: int) -> None:
    with fleet() as found:
        found.servers["a"].answers[CHAT] = answering(status)
        assert [found.ask(f"{n}").json()["name"] for n in range(4)] == ["b"] * 4
        found.servers["b"].answers[CHAT] = answering(status, b'{"from": "b"}')
        answer = found.ask("hello")
        assert answer.status_code == status
        assert "x-server" in answer.headers


def test_a_request_of_a_lost_server_goes_to_another() -> None:
    """The server is lost after it has sent a head, before anything of the answer."""

    async def broken(send: Send) -> None:
        await start(send, 200, b"", more=True)
        await asyncio.sleep(0.1)
        raise ConnectionError

    with fleet() as found:
        found.servers["a"].answers[CHAT] = broken
        assert [found.ask(f"{n}").json()["name"] for n in range(4)] == ["b"] * 4
        assert any("does not answer" in line for line in found.lines)


def test_an_answer_that_breaks_off_is_not_begun_again() -> None:
    async def broken(send: Send) -> None:
        await start(send, 200, b"data: 1\n\n", more=True)
        await asyncio.sleep(0.1)
        raise ConnectionError

    with fleet("a") as found:
        found.servers["a"].answers[CHAT] = broken
        with found.client.stream("POST", CHAT, content=b"{}") as answer:
            pieces = answer.iter_raw()
            assert next(pieces) == b"data: 1\n\n"
            with pytest.raises(httpx.TransportError):
                next(pieces)
        assert len(found.servers["a"].bodies) == 1


def test_pieces_come_when_they_are_sent() -> None:
    go_on = threading.Event()

    async def streaming(send: Send) -> None:
        await start(send, 200, b"one", more=True)
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": b"two", "more_body": False})

    with fleet("a") as found:
        found.servers["a"].answers[CHAT] = streaming
        with found.client.stream("POST", CHAT, content=b"{}") as answer:
            pieces = answer.iter_raw()
            assert next(pieces) == b"one"
            assert found.client.get("/replicas").json()["replicas"][0]["running"] == 1
            go_on.set()
            assert list(pieces) == [b"two"]


def test_a_client_that_leaves_ends_its_reply() -> None:
    async def endless(send: Send) -> None:
        await start(send, 200, b"one", more=True)
        while True:
            await asyncio.sleep(0.01)
            await send({"type": "http.response.body", "body": b"more", "more_body": True})

    with fleet("a", FrontLimits(all_bodies_bytes=3000)) as found:
        found.servers["a"].answers[CHAT] = endless
        for _ in range(3):  # the first ones' bodies are let go
            with found.client.stream("POST", CHAT, content=b"x" * 2000) as answer:
                assert answer.status_code == 200
                next(answer.iter_raw())
            until(lambda: not found.client.get("/replicas").json()["replicas"][0]["running"])


def test_bodies_are_bounded() -> None:
    with fleet("a", FrontLimits(body_bytes=1000, all_bodies_bytes=1500)) as found:
        assert found.client.post(CHAT, content=b"x" * 1001).status_code == 413
        for _ in range(3):
            assert found.client.post(CHAT, content=b"x" * 1000).status_code == 200


def test_no_server_is_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    said: list[str] = []
    proxy = Proxy([url], said.append)
    with running(proxy.app, lifespan="on") as address:
        assert httpx.get(f"{address}/health").status_code == 200
        assert httpx.get(f"{address}/ready").status_code == 503
        answer = httpx.post(f"{address}{CHAT}", content=b"{}")
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert "no server is ready" in answer.json()["error"]["message"]
    assert len(said) == 1
    assert f"{url} is not ready (All connection attempts failed)" in said[0]


def test_a_server_that_loads_is_named_once() -> None:
    num_asked = 0

    async def loads(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_asked
        num_asked += 1
        await start(send, 503 if num_asked < 3 else 200, b"{}")

    said: list[str] = []
    with running(loads) as url, running(Proxy([url], said.append).app, lifespan="on"):
        until(lambda: f"{url} is ready" in said)
    assert said[0].startswith(f"{url} is not ready (/ready answers 503)")
    assert len(said) == 2


def test_keys_share_no_prefixes() -> None:
    with fleet() as found:
        for key in ("one", "two"):
            found.ask("What is it? " * 2000, key=key)
        assert found.client.get("/replicas").json()["cached_tokens"] == 0

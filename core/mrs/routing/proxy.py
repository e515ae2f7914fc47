"""An HTTP server that sends each request to one of several servers, as `Router` chooses."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as Path
from starlette.types import ASGIApp, Receive, Scope, Send

from mrs.routing.prefix_chain import PrefixChain, chain_of
from mrs.routing.prompt_texts import prompt_texts
from mrs.routing.replica import Rates
from mrs.routing.router import Route, Router

#: Those of a server of which nothing is known yet: what matters for a choice is how they compare.
UNKNOWN_RATES = Rates(prompt_tokens_per_s=1000.0, reply_s=5.0, slots=16, cache_tokens=500_000)
#: How often servers are asked whether they are ready, and how long they may take to say so.
_ASK_S, _ANSWER_S = 1.0, 3.0
_CONNECT_S = 3.0
#: A body of more bytes is read in a thread.
_LONG_BODY = 2**18
#: Headers that belong to one connection, by RFC 9110.
_OF_A_MESSAGE = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te",
     b"trailer", b"transfer-encoding", b"upgrade", b"proxy-connection")
)  # fmt: skip
#: And those of a request that the next connection writes anew.
_OF_A_CONNECTION = _OF_A_MESSAGE | {b"host", b"content-length", b"expect"}
#: Answers of a server that has no room, or does not have what was asked for.
_ELSEWHERE = frozenset((404, 502, 503, 504))


@dataclass(frozen=True)
class ProxyLimits:
    """What all requests together may take of the router: bytes of bodies, and connections."""

    body_bytes: int = 64 * 2**20
    all_bodies_bytes: int = 512 * 2**20
    connections: int = 1024


class Proxy:
    """Routes requests to the servers at `urls`, as far as they are ready.

    A request goes to another one if nothing of an answer has been sent yet: because a server was
    lost, has no room, or does not know what a path names, such as a response that another stored.
    """

    def __init__(
        self, urls: Sequence[str], say: Callable[[str], None], limits: ProxyLimits | None = None
    ) -> None:
        self._urls = list(dict.fromkeys(each.rstrip("/") for each in urls))
        self._say = say
        self.limits = limits or ProxyLimits()
        #: Called once requests are answered.
        self.on_ready: Callable[[], object] = lambda: None
        self._router = Router()
        self._held_bytes = 0
        self._num_requests = dict.fromkeys(self._urls, 0)
        self._num_tokens = self._num_cached = 0
        self.app = Starlette(
            routes=[
                Path("/health", self._health),
                Path("/ready", self._ready),
                Path("/replicas", self._replicas),
                Path("/{path:path}", _Any(self._forward)),
            ],
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        timeout = httpx.Timeout(None, connect=_CONNECT_S)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        async with httpx.AsyncClient(timeout=timeout, limits=limits) as self._client:
            await self._ask_all()
            self.on_ready()
            watching = asyncio.ensure_future(self._watch())
            try:
                yield
            finally:
                watching.cancel()
                with suppress(asyncio.CancelledError):
                    await watching

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_ASK_S)
            await self._ask_all()

    async def _ask_all(self) -> None:
        await asyncio.gather(*map(self._ask, self._urls))

    async def _ask(self, url: str) -> None:
        """Let requests go to a server, or not any more, by what it says of itself."""
        try:
            answer = await self._client.get(f"{url}/ready", timeout=_ANSWER_S)
            is_ready = answer.status_code == 200
        except httpx.HTTPError:
            is_ready = False
        is_known = url in self._router.replicas
        if is_ready and not is_known:
            self._router.add(url, UNKNOWN_RATES)
            self._say(f"{url} is ready")
        elif is_known and not is_ready:
            self._lose(url)

    def _lose(self, url: str) -> None:
        if url in self._router.replicas:
            self._router.remove(url)
            self._say(f"{url} does not answer: its requests go to others")

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        names = list(self._router.replicas)
        return JSONResponse({"ready": names}, 200 if names else 503)

    async def _replicas(self, request: Request) -> Response:
        """What was sent where, and how much of prompts was expected to be cached there."""
        known = self._router.replicas
        return JSONResponse(
            {
                "prompt_tokens": self._num_tokens,
                "cached_tokens": self._num_cached,
                "replicas": [
                    {
                        "url": url,
                        "ready": url in known,
                        "requests": self._num_requests[url],
                        "running": known[url].num_running if url in known else 0,
                    }
                    for url in self._urls
                ],
            }
        )

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, unless its client leaves before."""
        request = Request(scope, receive)
        with self._holding() as hold:
            try:
                body = await _read(request, hold)
            except HTTPException as error:
                return await _error(error)(scope, receive, send)
            except ClientDisconnect:
                return
            tasks = [
                asyncio.ensure_future(self._answer(request, body, send)),
                asyncio.ensure_future(_left(receive)),
            ]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            for task in done:
                task.result()

    @contextmanager
    def _holding(self) -> Iterator[Callable[[int], None]]:
        """Counts bytes of a body, which are held until the request ends. Raises HTTPException."""
        held, limits = 0, self.limits

        def hold(num_bytes: int) -> None:
            nonlocal held
            held += num_bytes
            self._held_bytes += num_bytes
            if held > limits.body_bytes:
                raise HTTPException(413, f"the body has over {limits.body_bytes // 2**20} MiB")
            if self._held_bytes > limits.all_bodies_bytes:
                raise HTTPException(503, "too many long requests at once: try again later")

        try:
            yield hold
        finally:
            self._held_bytes -= held

    async def _answer(self, request: Request, body: bytes, send: Send) -> None:
        """Send the answer of the first server that has one."""
        salt = request.headers.get("authorization", "") + request.headers.get("x-api-key", "")
        if len(body) > _LONG_BODY:
            chain = await asyncio.to_thread(_chain, body, salt)
        else:
            chain = _chain(body, salt)
        tried = frozenset[str]()
        while (route := self._router.route(chain, time.monotonic(), tried)) is not None:
            tried |= {route.replica.name}
            is_last = tried.issuperset(self._router.replicas)
            try:
                if await self._relay(request, body, route, send, is_last=is_last):
                    self._num_tokens += route.num_tokens
                    self._num_cached += route.num_cached_tokens
                    return
            finally:
                self._router.end(route, time.monotonic())
        error = HTTPException(503, "no server is ready: try again later")
        await _error(error)(request.scope, request.receive, send)

    async def _relay(
        self, request: Request, body: bytes, route: Route, send: Send, *, is_last: bool
    ) -> bool:
        """Send a server's answer as it comes; False, and nothing, if another one is to be asked.

        An answer that breaks off later breaks off for the client, too.
        """
        url = route.replica.name
        self._num_requests[url] += 1
        query = f"?{request.url.query}" if request.url.query else ""
        path = request.scope["raw_path"].decode("latin-1")
        sent = self._client.build_request(
            request.method,
            f"{url}{path}{query}",
            headers=_passed(request.headers.raw, _OF_A_CONNECTION),
            content=body or None,
        )
        has_begun = False
        try:
            answer = await self._client.send(sent, stream=True)
            async with aclosing(answer):
                if answer.status_code in _ELSEWHERE and not is_last:
                    return False
                pieces = answer.aiter_raw()
                first = await anext(pieces, b"")  # a lost server has sent a head at most
                self._router.begin(route, time.monotonic())
                has_begun = True
                await send(
                    {
                        "type": "http.response.start",
                        "status": answer.status_code,
                        "headers": _passed(answer.headers.raw, _OF_A_MESSAGE),
                    }
                )
                await send({"type": "http.response.body", "body": first, "more_body": True})
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        except httpx.TransportError:
            self._lose(url)
            return has_begun
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return True


class _Any:
    """An ASGI application for all methods."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


async def _read(request: Request, hold: Callable[[int], None]) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        hold(len(piece))
        body += piece
    return bytes(body)


async def _left(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _chain(body: bytes, salt: str) -> PrefixChain:
    return chain_of(prompt_texts(body), salt)


def _passed(
    headers: Iterable[tuple[bytes, bytes]], without: frozenset[bytes]
) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in without]


def _error(error: HTTPException) -> Response:
    """In the form of OpenAI's interface."""
    content = {"message": error.detail, "type": "router_error", "param": None, "code": None}
    headers = {"retry-after": "1"} if error.status_code == 503 else None
    return JSONResponse({"error": content}, error.status_code, headers)


def serve(proxy: Proxy, listener: socket.socket, on_ready: Callable[[], object]) -> None:
    """Answer requests on a bound socket until a signal; replies that run are waited for.

    A second signal ends them.
    """
    config = uvicorn.Config(
        proxy.app,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=proxy.limits.connections,
    )
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # of answers that broke off
    proxy.on_ready = on_ready
    uvicorn.Server(config).run(sockets=[listener])

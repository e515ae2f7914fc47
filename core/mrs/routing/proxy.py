"""Servers at addresses, one of which answers each request: that which `Router` chooses."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as Path

from mrs.routing.front import Answer, Asked, Attempt, Front, FrontLimits, Lost
from mrs.routing.replica import Rates
from mrs.routing.router import Route, Router

#: Those of a server of which nothing is known yet: what matters for a choice is how they compare.
UNKNOWN_RATES = Rates(prompt_tokens_per_s=1000.0, reply_s=5.0, slots=16, cache_tokens=500_000)
#: How often servers are asked whether they are ready, and how long they may take to say so.
_ASK_S, _ANSWER_S = 1.0, 3.0
_CONNECT_S = 3.0


class Proxy:
    """Routes requests to the servers at `urls`, as far as they are ready."""

    def __init__(
        self, urls: Sequence[str], say: Callable[[str], None], limits: FrontLimits | None = None
    ) -> None:
        self._urls = list(dict.fromkeys(each.rstrip("/") for each in urls))
        self._say = say
        self.limits = limits or FrontLimits()
        #: Called once requests are answered.
        self.on_ready: Callable[[], object] = lambda: None
        self._router = Router()
        #: Servers of which has been said that no request goes to them.
        self._told: set[str] = set()
        self._num_requests = dict.fromkeys(self._urls, 0)
        self._num_tokens = self._num_cached = 0
        self.app = Starlette(
            routes=[
                Path("/health", self._health),
                Path("/ready", self._ready),
                Path("/replicas", self._replicas),
                Path("/{path:path}", Front(self, self.limits)),
            ],
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        timeout = httpx.Timeout(None, connect=_CONNECT_S)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        async with httpx.AsyncClient(timeout=timeout, limits=limits) as self.client:
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
            answer = await self.client.get(f"{url}/ready", timeout=_ANSWER_S)
            is_ready, why = answer.status_code == 200, f"/ready answers {answer.status_code}"
        except httpx.HTTPError as error:
            is_ready, why = False, str(error) or "no answer in time"
        is_known = url in self._router.replicas
        if is_ready and not is_known:
            self._router.add(url, UNKNOWN_RATES)
            self._told.discard(url)
            self._say(f"{url} is ready")
        elif is_known and not is_ready:
            self.lose(url)
        elif not is_ready and url not in self._told:
            self._told.add(url)
            self._say(f"{url} is not ready ({why}): it is asked every second")

    def lose(self, url: str) -> None:
        if url in self._router.replicas:
            self._router.remove(url)
            self._told.add(url)
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

    async def attempt(self, asked: Asked, tried: set[str]) -> Attempt | None:
        route = self._router.route(asked.chain, time.monotonic(), frozenset(tried))
        if route is None:
            return None
        tried.add(route.replica.name)
        self._num_requests[route.replica.name] += 1
        return _Attempt(self, asked, route, is_last=tried.issuperset(self._router.replicas))

    def begun(self, route: Route) -> None:
        self._router.begin(route, time.monotonic())

    def ended(self, route: Route, *, is_answered: bool) -> None:
        self._router.end(route, time.monotonic())
        if is_answered:
            self._num_tokens += route.num_tokens
            self._num_cached += route.num_cached_tokens


class _Attempt:
    """A request to one server."""

    def __init__(self, proxy: Proxy, asked: Asked, route: Route, *, is_last: bool) -> None:
        self._proxy, self._asked, self._route = proxy, asked, route
        self._answer: httpx.Response | None = None
        self.is_last = is_last

    async def answer(self) -> Answer:
        asked, url = self._asked, self._route.replica.name
        client = self._proxy.client
        sent = client.build_request(
            asked.method, f"{url}{asked.target}", headers=asked.headers, content=asked.body or None
        )
        try:
            self._answer = answer = await client.send(sent, stream=True)
        except httpx.TransportError as error:
            self._proxy.lose(url)
            raise Lost from error
        return Answer(answer.status_code, answer.headers.raw, self._pieces(answer))

    async def _pieces(self, answer: httpx.Response) -> AsyncIterator[bytes]:
        try:
            async for piece in answer.aiter_raw():
                yield piece
        except httpx.TransportError as error:
            self._proxy.lose(self._route.replica.name)
            raise Lost from error

    def begin(self) -> None:
        self._proxy.begun(self._route)

    async def close(self, *, is_answered: bool) -> None:
        self._proxy.ended(self._route, is_answered=is_answered)
        if self._answer is not None:
            await self._answer.aclose()


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

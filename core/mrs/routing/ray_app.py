"""Replicas of a server under Ray Serve, which places, scales, watches and replaces them.

A front answers HTTP, and each request goes through Ray's handle to a replica: a server of its own
process on the loopback interface of its node. Ray asks `ForecastRouter` which one. Ray Serve's
interfaces are described at https://docs.ray.io/en/latest/serve.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import httpx
import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingConfig, HTTPOptions, RequestRouterConfig
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica
from ray.serve.schema import LoggingConfig
from starlette.applications import Starlette
from starlette.routing import Route as Path
from starlette.types import ASGIApp

from mrs.errors import NotReadable
from mrs.routing.front import Answer, Asked, Attempt, Front, FrontLimits, Headers, Lost
from mrs.routing.prefix_chain import PrefixChain
from mrs.routing.replica import Rates
from mrs.routing.router import Route, Router

APP = "mrs"
#: How long a server may take to load its model, and to say that it is ready; how often it is asked.
_START_S, _HEALTH_S, _CHECK_S = 1800.0, 10.0, 5.0
_STOP_S = 30.0
#: Variables that a replica's server does not have: its words say all that they said.
_OF_FLEETS = frozenset(
    f"MRS_{each}"
    for each in ("CONFIG", "RAY", "REPLICAS", "MAX_REPLICAS", "PORT", "SERVE_IP", "HOST")
)
#: Requests that Ray hands to a replica at once: its server has a queue with bounds of its own.
_MOST_REQUESTS = 1000


@dataclass(frozen=True)
class Fleet:
    """How many replicas there are, what each needs of its node, and how the server is started.

    `words` follow `mrs`. Between `least` and `most`, Ray starts and stops replicas so that each has
    about `wanted_requests`.
    """

    words: tuple[str, ...]
    least: int
    most: int
    wanted_requests: float
    num_gpus: int
    memory_bytes: int
    rates: Rates


class Ticket:
    """What a request carries to `ForecastRouter`, and what that decided.

    It stays in the process of the front; a replica gets none of it.
    """

    def __init__(self, chain: PrefixChain, tried: set[str]) -> None:
        self.chain, self.tried = chain, tried
        self.router: ForecastRouter | None = None
        self.route: Route | None = None
        self.is_last = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Ticket, (PrefixChain((), 0), set())


class ForecastRouter(RequestRouter):  # type: ignore[misc]
    """Ray Serve's choice of a replica, by `mrs.routing.router`."""

    def initialize_state(self, **rates: Any) -> None:
        """Called by Ray with the fields of `Rates`, as the deployment has them."""
        self._rates = Rates(**rates)
        self._policy = Router()
        self._tickets: dict[str, Ticket] = {}
        # Ray routes in a thread, and the front notes first tokens in its own.
        self._lock = threading.Lock()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called by Ray when replicas have come or gone."""
        super().update_replicas(replicas)
        names = {each.replica_id.unique_id for each in replicas}
        with self._lock:
            for name in self._policy.replicas.keys() - names:
                self._policy.remove(name)
            for name in names - self._policy.replicas.keys():
                self._policy.add(name, self._rates)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Called by Ray when a replica is lost."""
        super().on_replica_actor_died(replica_id)
        with self._lock:
            self._policy.remove(replica_id.unique_id)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Called by Ray for each request, and again if the replica refuses it."""
        if pending_request is None:
            return [candidate_replicas]
        by_name = {each.replica_id.unique_id: each for each in candidate_replicas}
        ticket = pending_request.args[0]
        with self._lock:
            excluded = ticket.tried | (self._policy.replicas.keys() - by_name.keys())
            self._end(pending_request.metadata.internal_request_id)
            now_s = time.monotonic()
            route = self._policy.route(ticket.chain, now_s, frozenset(excluded))
            if route is None:  # all were tried: any may answer again
                route = self._policy.route(ticket.chain, now_s)
            if route is None:
                return []
            ticket.router, ticket.route = self, route
            ticket.is_last = by_name.keys() <= ticket.tried | {route.replica.name}
            self._tickets[pending_request.metadata.internal_request_id] = ticket
        chosen = by_name.get(route.replica.name)
        return [] if chosen is None else [[chosen]]

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Called by Ray when a request has ended, however it did."""
        with self._lock:
            self._end(internal_request_id)

    def begin(self, route: Route) -> None:
        """Called by the front when something of an answer has come."""
        with self._lock:
            self._policy.begin(route, time.monotonic())

    def _end(self, request_id: str) -> None:
        ticket = self._tickets.pop(request_id, None)
        if ticket is not None and ticket.route is not None:
            self._policy.end(ticket.route, time.monotonic())


class Replica:
    """A server in a process of its own, which Ray's actor starts, asks and stops."""

    async def __init__(self, words: Sequence[str]) -> None:  # type: ignore[misc]  # Ray awaits it
        self._server: Process | None = None
        self._server = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "mrs_cli", *words,
            env={name: text for name, text in os.environ.items() if name not in _OF_FLEETS},
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=PIPE,
        )  # fmt: skip
        self._url = await asyncio.wait_for(self._ready(self._server), _START_S)
        self._reading = asyncio.ensure_future(self._read(self._server))
        self._client = httpx.AsyncClient(
            base_url=self._url, timeout=httpx.Timeout(None), limits=httpx.Limits()
        )

    async def _ready(self, server: Process) -> str:
        """The address of the server, once it serves. Raises NotReadable with its last words."""
        assert server.stderr is not None
        last = ""
        async for line in server.stderr:
            text = line.decode(errors="replace").strip()
            print(text, file=sys.stderr)
            last = text or last
            _, found, rest = text.partition(" at http://127.0.0.1:")
            if found:
                return f"http://127.0.0.1:{rest.partition('/')[0]}"
        raise NotReadable("a replica's server ended", where=last)

    async def _read(self, server: Process) -> None:
        """Pass the server's lines on to Ray's log."""
        assert server.stderr is not None
        async for line in server.stderr:
            print(line.decode(errors="replace").rstrip(), file=sys.stderr)

    async def check_health(self) -> None:
        """Called by Ray; raises if the server does not answer."""
        answer = await self._client.get("/ready", timeout=_HEALTH_S)
        answer.raise_for_status()

    async def answer(
        self, ticket: Ticket, method: str, target: str, headers: Headers, body: bytes
    ) -> AsyncIterator[tuple[int, Headers] | bytes]:
        """The status and headers of the server's answer, then its pieces."""
        sent = self._client.build_request(method, target, headers=headers, content=body or None)
        answer = await self._client.send(sent, stream=True)
        try:
            yield answer.status_code, answer.headers.raw
            async for piece in answer.aiter_raw():
                yield piece
        finally:
            await answer.aclose()

    def __del__(self) -> None:
        """Called by Ray when the replica is to end: the server drains."""
        server = self._server
        if server is None or server.returncode is not None:
            return
        with suppress(ProcessLookupError, ChildProcessError):
            server.send_signal(signal.SIGTERM)
            deadline_s = time.monotonic() + _STOP_S
            while time.monotonic() < deadline_s and os.waitpid(server.pid, os.WNOHANG)[0] == 0:
                time.sleep(0.05)


class _Attempt:
    """A request that Ray carries to a replica."""

    def __init__(self, handle: Any, asked: Asked, tried: set[str]) -> None:
        self._handle, self._asked = handle, asked
        self._ticket = Ticket(asked.chain, tried)
        self._stream: Any = None
        self._has_ended = False

    @property
    def is_last(self) -> bool:
        return self._ticket.is_last

    async def answer(self) -> Answer:
        asked = self._asked
        self._stream = self._handle.answer.remote(
            self._ticket, asked.method, asked.target, asked.headers, asked.body
        )
        try:
            status, headers = await self._next()
        finally:  # the router has chosen by now
            if self._ticket.route is not None:
                self._ticket.tried.add(self._ticket.route.replica.name)
        return Answer(status, headers, self._pieces())

    async def _next(self) -> Any:
        try:
            return await anext(self._stream)
        except StopAsyncIteration:
            self._has_ended = True
            raise
        except (RayError, httpx.TransportError) as error:
            raise Lost from error

    async def _pieces(self) -> AsyncIterator[bytes]:
        with suppress(StopAsyncIteration):
            while True:
                yield await self._next()

    def begin(self) -> None:
        ticket = self._ticket
        if ticket.router is not None and ticket.route is not None:
            ticket.router.begin(ticket.route)

    async def close(self, *, is_answered: bool) -> None:
        if self._stream is not None and not self._has_ended:
            self._stream.cancel()


class _Replicas:
    """The replicas of a deployment, as a front asks them."""

    #: How many of them may be lost or full before a request is given up.
    MOST_ATTEMPTS = 5

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def attempt(self, asked: Asked, tried: set[str]) -> Attempt | None:
        if len(tried) >= self.MOST_ATTEMPTS:
            return None
        return _Attempt(self._handle, asked, tried)


class Ingress:
    """Ray's HTTP proxy hands requests to its front."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __serve_build_asgi_app__(self) -> ASGIApp:
        front = Front(_Replicas(self._handle.options(stream=True)), FrontLimits())
        return Starlette(routes=[Path("/{path:path}", front)])


def run_fleet(fleet: Fleet, address: str | None, host: str, port: int) -> None:
    """Deploy a fleet to a Ray cluster, or one of this machine, and wait until it serves.

    One that is deployed already is updated, a replica after another.
    """
    ray.init(address=address, include_dashboard=False, logging_level="ERROR")
    serve.start(http_options=HTTPOptions(host=host, port=port))
    scaling = AutoscalingConfig(
        min_replicas=fleet.least,
        max_replicas=fleet.most,
        target_ongoing_requests=fleet.wanted_requests,
    )
    quiet = LoggingConfig(log_level="WARNING", enable_access_log=False)
    replicas = serve.deployment(
        name="replica",
        autoscaling_config=scaling,
        max_ongoing_requests=_MOST_REQUESTS,
        health_check_period_s=_CHECK_S,
        health_check_timeout_s=_HEALTH_S,
        graceful_shutdown_timeout_s=_STOP_S,
        request_router_config=RequestRouterConfig(
            request_router_class=ForecastRouter, request_router_kwargs=asdict(fleet.rates)
        ),
        ray_actor_options={"num_cpus": 1, "num_gpus": fleet.num_gpus, "memory": fleet.memory_bytes},
    )(Replica)
    front = serve.deployment(
        name="front",
        max_ongoing_requests=_MOST_REQUESTS,
        ray_actor_options={"num_cpus": 0},
    )(serve.ingress()(Ingress))
    app = front.bind(replicas.bind(list(fleet.words)))
    serve.run(app, name=APP, route_prefix="/", logging_config=quiet)


def stop_fleet() -> None:
    """End the fleet, and the cluster of this machine that was started for it."""
    serve.shutdown()
    ray.shutdown()

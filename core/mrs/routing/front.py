"""The side of a router that its clients see: bodies within bounds, and answers as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from mrs.routing.prefix_chain import PrefixChain, chain_of
from mrs.routing.prompt_texts import prompt_texts

Headers = list[tuple[bytes, bytes]]

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
class FrontLimits:
    """What all requests together may take of a router: bytes of bodies, and connections."""

    body_bytes: int = 64 * 2**20
    all_bodies_bytes: int = 512 * 2**20
    connections: int = 1024


class Asked(NamedTuple):
    """A request for one of several servers; `target` is its path with its query."""

    method: str
    target: str
    headers: Headers
    body: bytes
    chain: PrefixChain


class Answer(NamedTuple):
    """A server's answer, of which `pieces` are still to come. They raise Lost."""

    status: int
    headers: Headers
    pieces: AsyncIterator[bytes]


class Lost(Exception):
    """A server that was asked does not answer any more."""


class Attempt(Protocol):
    """A request on its way to a server, which a router chose."""

    @property
    def is_last(self) -> bool:
        """Whether no other server could be asked."""

    async def answer(self) -> Answer:
        """The head of the server's answer. Raises Lost."""

    def begin(self) -> None:
        """Note that something of the answer has come."""

    async def close(self, *, is_answered: bool) -> None:
        """End the request, however far it is."""


class Servers(Protocol):
    """The servers that a front has behind it."""

    async def attempt(self, asked: Asked, tried: set[str]) -> Attempt | None:
        """Choose a server that was not tried, and add it; None if there is none."""


class Front:
    """An ASGI application that lets one of `servers` answer each request.

    A request goes to another one if nothing of an answer has been sent yet: because a server was
    lost, has no room, or does not know what a path names, such as a response that another stored.
    """

    def __init__(self, servers: Servers, limits: FrontLimits) -> None:
        self._servers, self._limits = servers, limits
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
        held, limits = 0, self._limits

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
        asked, tried = await _asked(request, body), set[str]()
        while (attempt := await self._servers.attempt(asked, tried)) is not None:
            is_answered = False
            try:
                is_answered = await _relay(attempt, send)
            finally:
                await attempt.close(is_answered=is_answered)
            if is_answered:
                return
        error = HTTPException(503, "no server is ready: try again later")
        await _error(error)(request.scope, request.receive, send)


async def _relay(attempt: Attempt, send: Send) -> bool:
    """Send a server's answer as it comes; False, and nothing, if another one is to be asked.

    An answer that breaks off later breaks off for the client, too.
    """
    has_begun = False
    try:
        answer = await attempt.answer()
        if answer.status in _ELSEWHERE and not attempt.is_last:
            return False
        first = await anext(answer.pieces, b"")  # a lost server has sent a head at most
        attempt.begin()
        has_begun = True
        headers = _without(answer.headers, _OF_A_MESSAGE)
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": first, "more_body": True})
        async for piece in answer.pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except Lost:
        return has_begun
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return True


async def _asked(request: Request, body: bytes) -> Asked:
    salt = request.headers.get("authorization", "") + request.headers.get("x-api-key", "")
    is_long = len(body) > _LONG_BODY
    chain = await asyncio.to_thread(_chain, body, salt) if is_long else _chain(body, salt)
    query = f"?{request.url.query}" if request.url.query else ""
    target = request.scope["raw_path"].decode("latin-1") + query
    headers = _without(request.headers.raw, _OF_A_CONNECTION)
    return Asked(request.method, target, headers, body, chain)


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


def _without(headers: Iterable[tuple[bytes, bytes]], names: frozenset[bytes]) -> Headers:
    return [(name, value) for name, value in headers if name.lower() not in names]


def _error(error: HTTPException) -> Response:
    """In the form of OpenAI's interface."""
    content = {"message": error.detail, "type": "router_error", "param": None, "code": None}
    headers = {"retry-after": "1"} if error.status_code == 503 else None
    return JSONResponse({"error": content}, error.status_code, headers)

"""Answers the requests of one route: an ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.types import Receive, Scope, Send

from mrs.server.http.bodies import HeldBody, decoded_bytes
from mrs.server.http.errors import api_error
from mrs.server.http.exchange import ClientGone, Exchange
from mrs.server.http.form import FORM_BYTES, is_form, read_form
from mrs.server.http.style import Style, send_error
from mrs.server.http.wire import EventWriter, send_body
from mrs.server.log.record import CLIENT_GONE

if TYPE_CHECKING:
    from mrs.server.service import Service

#: A larger body is decoded in a thread, so that other requests do not wait.
_DECODED_AT_ONCE_BYTES = 2**16
#: A handler returns the body of its response, or an async generator of a stream's events.
Handler = Callable[["Service", Exchange, Any], Awaitable[Any]]


class Endpoint:
    """Reads a request of `body_type`, if the route has a body, and sends what `handle` returns.

    When the client leaves, the handler or the generator is cancelled.
    """

    def __init__(
        self,
        service: Service,
        route: str,
        handle: Handler,
        body_type: type[msgspec.Struct] | None,
        style: Style,
        *,
        takes_form: bool = False,
    ) -> None:
        self._route = route
        self._service = service
        self._handle = handle
        self._body_type = body_type
        self._style = style
        self._takes_form = takes_form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            settings = self._service.settings
            held = self._service.bodies.begin(exchange.sender)
            exchange.cleanup.append(held.end)
            exchange.held = held
            await exchange.unless_gone(
                self._respond(
                    exchange,
                    held,
                    await exchange.read_body(
                        held, settings.max_body_bytes, settings.read_timeout_s
                    ),
                )
            )
        except ClientGone:
            exchange.record.status = CLIENT_GONE
        except Exception as error:  # noqa: BLE001 - every error has the one shape
            headers = exchange.response_headers
            await send_error(exchange.send, self._style, api_error(error), headers)
        finally:
            for clean in reversed(exchange.cleanup):
                clean()
            self._service.ended(exchange.record, self._route)

    async def _decoded(
        self, exchange: Exchange, held: HeldBody, body: bytearray
    ) -> msgspec.Struct | None:
        body_type = self._body_type
        if body_type is None:
            return None
        content_type = exchange.headers.get("content-type", "")
        if self._takes_form and is_form(content_type):
            held.resize((1 + FORM_BYTES) * len(body))
            return await self._service.in_thread(
                exchange,
                lambda: exchange.convert(read_form(body, content_type), body_type, is_form=True),
            )
        if len(body) <= _DECODED_AT_ONCE_BYTES:
            held.resize(len(body) + decoded_bytes(body))
            request = exchange.decode(body, body_type)
        else:
            in_thread = self._service.in_thread
            held.resize(len(body) + await in_thread(exchange, lambda: decoded_bytes(body)))
            most = self._service.most_signs
            request = await in_thread(exchange, lambda: exchange.decode(body, body_type, most))
        held.resize(held.size_bytes - len(body))
        exchange.kept.append(request)
        return request

    async def _respond(self, exchange: Exchange, held: HeldBody, body: bytearray) -> None:
        exchange.begin(self._service.settings.request_timeout_s)
        request = await self._decoded(exchange, held, body)
        del body  # it may be large, and the answer may take long
        answer = await self._handle(self._service, exchange, request)
        if not isinstance(answer, AsyncIterator):
            await send_body(exchange.send, answer, headers=exchange.response_headers)
            return
        async with aclosing(answer) as events:  # type: ignore[type-var]
            await _stream(exchange, events, self._style, self._service.settings.sse_keep_alive_s)


async def _stream(
    exchange: Exchange, events: AsyncIterator[Any], style: Style, keep_alive_s: float
) -> None:
    """Send a stream; an error in it is its last event."""
    writer = EventWriter(exchange.send, ends_with_done=style.ends_with_done)
    await writer.begin(exchange.response_headers)
    async with _while_waiting(writer, keep_alive_s):
        try:
            async for event in events:
                await writer.write(event)
        except Exception as error:  # noqa: BLE001 - the client reads the error from the stream
            await writer.write(style.error_body(api_error(error)))
    await writer.end()


@asynccontextmanager
async def _while_waiting(writer: EventWriter, keep_alive_s: float) -> AsyncIterator[None]:
    """Lets the writer keep the connection alive; an interval of 0 does not."""
    if not keep_alive_s:
        yield
        return
    task = asyncio.ensure_future(writer.keep_alive(keep_alive_s))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

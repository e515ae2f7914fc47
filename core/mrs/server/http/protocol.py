"""HTTP/1.1 connections that end when a client stalls, and not before it can read its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from mrs.server.http.errors import ApiError

#: How long a closing connection goes on dropping what its client still sends.
_LINGER_S = 2.0


class _LingeringTransport:
    """A transport that closes its own direction first, if the client may still be sending.

    A socket that is closed while it holds unread data resets the connection, and a client that
    is reset while it sends its body often loses the response that explains why. So `close` says
    that no more comes, and the connection ends with the client's own end or after `linger_s`.
    """

    def __init__(
        self, transport: asyncio.Transport, is_client_done: Callable[[], bool], linger_s: float
    ) -> None:
        self._transport = transport
        self._is_client_done = is_client_done
        self._linger_s = linger_s
        self.is_lingering = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self.is_lingering or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing() or self._is_client_done():
            self._transport.close()
            return
        self.is_lingering = True
        self._transport.write_eof()
        self._transport.resume_reading()
        asyncio.get_running_loop().call_later(self._linger_s, self._transport.abort)


class TimedProtocol(H11Protocol):
    """uvicorn's connection, and a limit of `stall_s` for what it leaves without one.

    That is the time of a client to send the head of its first request, and to read some of a
    response. Invalid requests get an error in the shape of all others. A response that comes
    before the whole request was read reaches the client.
    """

    def __init__(self, *arguments: Any, stall_s: float, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._stall_s = stall_s
        self._first_head: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        linger_s = min(self._stall_s, _LINGER_S)
        self._lingering = _LingeringTransport(transport, self._is_client_done, linger_s)
        super().connection_made(cast(asyncio.Transport, self._lingering))
        self._first_head = self.loop.call_later(self._stall_s, self._require_request)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._first_head, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _is_client_done(self) -> bool:
        return self.conn.their_state not in (h11.SEND_BODY, h11.ERROR)

    def data_received(self, data: bytes) -> None:
        if not self._lingering.is_lingering:
            super().data_received(data)

    def _require_request(self) -> None:
        if self.cycle is None:
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self._stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self.loop.call_later(self._stall_s, self.transport.abort)  # closing waits for the client

    def send_400_response(self, msg: str) -> None:
        body = msgspec.json.encode(ApiError(400, msg.rstrip("."), code="invalid_http").body)
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def timed_protocol(stall_s: float) -> Any:
    """A class of connections, as uvicorn's configuration wants one."""
    return partial(TimedProtocol, stall_s=stall_s)

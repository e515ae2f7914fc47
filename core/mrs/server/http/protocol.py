"""HTTP/1.1 connections that end when a client stalls."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from mrs.server.http.errors import ApiError


class TimedProtocol(H11Protocol):
    """uvicorn's connection, and a limit of `stall_s` for what it leaves without one.

    That is the time of a client to send the head of its first request, and to read some of a
    response. Invalid requests get an error in the shape of all others.
    """

    def __init__(self, *arguments: Any, stall_s: float, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._stall_s = stall_s
        self._first_head: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._first_head = self.loop.call_later(self._stall_s, self._require_request)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._first_head, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

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
        headers = [("content-type", "application/json"), ("connection", "close")]
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

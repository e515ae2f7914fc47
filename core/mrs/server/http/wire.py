"""Sends responses over ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.types import Send

from mrs.server.http.errors import ApiError

_EVENT_STREAM = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class Raw(msgspec.Struct, frozen=True):
    """A body that is not JSON."""

    content: bytes
    media_type: str = "text/plain; charset=utf-8"


async def send_body(
    send: Send, body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> None:
    """A whole response: `body` as JSON, unless it is Raw."""
    raw = body if isinstance(body, Raw) else Raw(msgspec.json.encode(body), "application/json")
    fields = {"content-type": raw.media_type, "content-length": str(len(raw.content))}
    await _start(send, status, {**fields, **(headers or {})})
    await send({"type": "http.response.body", "body": raw.content})


async def send_error(
    send: Send, error: ApiError, *, headers: Mapping[str, str] | None = None
) -> None:
    await send_body(
        send, error.body, status=error.status, headers={**(headers or {}), **error.headers}
    )


class EventWriter:
    """Writes server-sent events: each is one line of JSON, and the last is `[DONE]`."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_silent = True

    async def keep_alive(self, interval_s: float) -> None:
        """Send a comment after each interval without an event, until this is cancelled."""
        while True:
            self._is_silent = True
            await asyncio.sleep(interval_s)
            if self._is_silent:
                await self._part(b": waiting\n\n")

    async def begin(self, headers: Mapping[str, str]) -> None:
        await _start(self._send, 200, {**_EVENT_STREAM, **headers})

    async def write(self, data: Any) -> None:
        await self._body(msgspec.json.encode(data))

    async def end(self) -> None:
        await self._body(b"[DONE]")
        await self._send({"type": "http.response.body", "body": b""})

    async def _body(self, line: bytes) -> None:
        self._is_silent = False
        await self._part(b"data: " + line + b"\n\n")

    async def _part(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})


async def _start(send: Send, status: int, headers: Mapping[str, str]) -> None:
    encoded = [(name.encode("latin-1"), _printable(text)) for name, text in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})


def _printable(text: str) -> bytes:
    """A header's value; characters that would end or break it become question marks."""
    return "".join(c if " " <= c <= "~" else "?" for c in text).encode("ascii")

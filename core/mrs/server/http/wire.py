"""Sends responses over ASGI."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from starlette.types import Send

from mrs.server.http.json_pieces import json_pieces

#: Of a long body, so much is sent before other connections have their turn.
_PART_BYTES = 2**16
#: Of a file, so much is read at a time.
_FILE_PART_BYTES = 2**20
_EVENT_STREAM = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class Raw(msgspec.Struct, frozen=True):
    """A body that is encoded already: whole, or in pieces."""

    content: bytes | list[bytes]
    media_type: str = "text/plain; charset=utf-8"

    @property
    def pieces(self) -> list[bytes]:
        return [self.content] if isinstance(self.content, bytes) else self.content


class NamedEvent(msgspec.Struct, frozen=True, tag_field="type"):
    """An event of a stream that has its type on a line of its own, too."""


class FileBody(msgspec.Struct, frozen=True):
    """The content of a file, which is read while it is sent."""

    path: str
    media_type: str


def raw_json(body: Any) -> Raw:
    """A body as JSON, in pieces: what may be long is encoded in a thread."""
    return Raw([*json_pieces(body)], "application/json")


async def send_body(
    send: Send, body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> None:
    """A whole response: `body` as JSON, unless it is Raw or a file. A long one is sent in parts."""
    if isinstance(body, FileBody):
        await _send_file(send, body, headers or {})
        return
    raw = body if isinstance(body, Raw) else Raw(msgspec.json.encode(body), "application/json")
    length = sum(map(len, raw.pieces))
    fields = {"content-type": raw.media_type, "content-length": str(length)}
    await _start(send, status, {**fields, **(headers or {})})
    for part in _parts(raw.pieces):
        length -= len(part)
        await send({"type": "http.response.body", "body": part, "more_body": length > 0})
        if length:
            await asyncio.sleep(0)


async def _send_file(send: Send, body: FileBody, headers: Mapping[str, str]) -> None:
    """What is added to the file meanwhile is left out."""
    with await asyncio.to_thread(Path(body.path).open, "rb") as file:
        length = os.fstat(file.fileno()).st_size
        fields = {"content-type": body.media_type, "content-length": str(length)}
        await _start(send, 200, {**fields, **headers})
        while True:
            part = await asyncio.to_thread(file.read, min(_FILE_PART_BYTES, length))
            length -= len(part)
            await send({"type": "http.response.body", "body": part, "more_body": length > 0})
            if not length or not part:
                return


def _parts(pieces: list[bytes]) -> Iterator[bytes]:
    """The same bytes, of which each part but the last has _PART_BYTES or some more."""
    waiting = bytearray()
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(piece), _PART_BYTES):
            waiting += view[start : start + _PART_BYTES]
            if len(waiting) >= _PART_BYTES:
                yield bytes(waiting)
                waiting.clear()
    if waiting or not any(pieces):
        yield bytes(waiting)


class EventWriter:
    """Writes server-sent events: each is one line of JSON, after its name if it has one.

    With `ends_with_done` the last one is `[DONE]`.
    """

    def __init__(self, send: Send, *, ends_with_done: bool = True) -> None:
        self._send = send
        self._ends_with_done = ends_with_done
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
        name = data.__struct_config__.tag if isinstance(data, NamedEvent) else None
        line = b"" if name is None else f"event: {name}\n".encode()
        await self._event(line + b"data: " + msgspec.json.encode(data))

    async def end(self) -> None:
        if self._ends_with_done:
            await self._event(b"data: [DONE]")
        await self._send({"type": "http.response.body", "body": b""})

    async def _event(self, lines: bytes) -> None:
        self._is_silent = False
        await self._part(lines + b"\n\n")

    async def _part(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})


async def _start(send: Send, status: int, headers: Mapping[str, str]) -> None:
    encoded = [(name.encode("latin-1"), _printable(text)) for name, text in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})


def _printable(text: str) -> bytes:
    """A header's value; characters that would end or break it become question marks."""
    return "".join(c if " " <= c <= "~" else "?" for c in text).encode("ascii")

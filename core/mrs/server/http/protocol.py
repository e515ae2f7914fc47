"""HTTP/1.1 connections that end when a client stalls, and not before it can read its answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, cast

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from mrs.server.http.errors import ApiError
from mrs.server.http.pace import allowed_s

#: How long a closing connection goes on dropping what its client still sends.
_LINGER_S = 2.0
#: Parts of requests that are read before other connections have their turn: about a millisecond.
_TURN_EVENTS = 64
#: The chunks that a body may have, and bytes of each more: a chunk takes as long as many bytes.
_FREE_CHUNKS, _CHUNK_BYTES = 2**14, 64


class _Connection(h11.Connection):
    """h11's connection, which needs turns to read many small chunks, and does not read too many.

    `left` events may be read in this turn; `is_cut` is set once there may be more than that.
    """

    left = 0
    is_cut = False
    refusal = ""
    _num_chunks = _body_bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        """Raises h11.RemoteProtocolError, and `refusal` says why if it is not h11's."""
        self.is_cut = self.left == 0
        if self.is_cut:
            return h11.NEED_DATA
        self.left -= 1
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._num_chunks = self._body_bytes = 0
        elif isinstance(event, h11.Data):
            self._num_chunks += event.chunk_start
            self._body_bytes += len(event.data)
            if self._num_chunks > _FREE_CHUNKS + self._body_bytes // _CHUNK_BYTES:
                self.refusal = "the body has too many small chunks: send larger ones"
                raise h11.RemoteProtocolError(self.refusal)
        return event


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
        self.is_held = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def hold(self) -> None:
        """Read nothing more until `let_go`, whoever resumes reading."""
        self.is_held = True
        self._transport.pause_reading()

    def let_go(self, *, resume: bool) -> None:
        self.is_held = False
        if resume:
            self._transport.resume_reading()

    def resume_reading(self) -> None:
        if not self.is_held:
            self._transport.resume_reading()

    def is_closing(self) -> bool:
        return self.is_lingering or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing() or self._is_client_done():
            self._transport.close()
            return
        self.is_lingering = True
        if self._transport.can_write_eof():  # TLS has no such end of one direction
            self._transport.write_eof()
        self._transport.resume_reading()
        asyncio.get_running_loop().call_later(self._linger_s, self._transport.abort)


class TimedProtocol(H11Protocol):
    """uvicorn's connection, and limits for what it leaves without one.

    A client has `stall_s` for the whole head of each request, from its first byte on (of the first
    request, from the connection on), `pace.allowed_s` for the whole body, and `stall_s` to read
    some of a response. Invalid requests get an error in the shape of all others. A response that
    comes before the whole request was read reaches the client. A body of many small chunks is read
    in turns with other connections.
    """

    def __init__(self, *arguments: Any, stall_s: float, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.conn = self._turns = _Connection(h11.SERVER)
        self._stall_s = stall_s
        self._linger_s = min(stall_s, _LINGER_S)
        #: What the client is sending: its timer, since when, and how many bytes.
        self._part: object = None
        self._late: asyncio.TimerHandle | None = None
        self._since_s, self._part_bytes = self.loop.time(), 0
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._lingering = _LingeringTransport(transport, self._is_client_done, self._linger_s)
        super().connection_made(cast(asyncio.Transport, self._lingering))
        self._expect(h11.IDLE)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        if self._stalled is not None:
            self._stalled.cancel()
        super().connection_lost(exc)

    @property
    def waits_since_s(self) -> float:
        """Since when there is no request to answer; infinite while there is one."""
        is_read = not self.transport.get_write_buffer_size()
        is_idle = self.cycle is None or (self.cycle.response_complete and is_read)
        return self._since_s if is_idle else math.inf

    def abort(self) -> None:
        """Close the connection now; it counts no more."""
        self.transport.abort()
        self.connections.discard(self)

    def _is_client_done(self) -> bool:
        return self.conn.their_state not in (h11.SEND_BODY, h11.ERROR)

    def data_received(self, data: bytes) -> None:
        if not self._lingering.is_lingering:
            self._part_bytes += len(data)
            super().data_received(data)

    def handle_events(self) -> None:
        self._turns.left = _TURN_EVENTS
        super().handle_events()
        if self._turns.is_cut and not self._lingering.is_closing():
            self._lingering.hold()
            self.loop.call_soon(self._go_on)
        state = self.conn.their_state
        is_sending = state is h11.SEND_BODY or (state is h11.IDLE and self.conn.trailing_data[0])
        self._expect(state if is_sending else None)

    def _go_on(self) -> None:
        """Read more of what has come already."""
        if self._lingering.is_closing():
            return
        self._lingering.let_go(resume=not self.flow.read_paused)
        self.handle_events()

    def _expect(self, part: object) -> None:
        """Begin to wait for the rest of a head (IDLE) or a body (SEND_BODY), or for nothing."""
        if part is self._part and self._late is not None:
            return
        if self._late is not None:
            self._late.cancel()
            self._late = None
        self._part, self._part_bytes, self._since_s = part, 0, self.loop.time()
        if part is not None:
            self._late = self.loop.call_at(self._deadline_s(), self._cut_off_if_late)

    def _deadline_s(self) -> float:
        if self._part is h11.IDLE:
            return self._since_s + self._stall_s
        # Whoever reads the body answers first that it is late.
        return self._since_s + allowed_s(self._stall_s, self._part_bytes) + self._linger_s

    def _cut_off_if_late(self) -> None:
        deadline_s = self._deadline_s()
        if self.loop.time() >= deadline_s:
            self.transport.abort()
        else:
            self._late = self.loop.call_at(deadline_s, self._cut_off_if_late)

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
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # it has its answer
            self.transport.close()
            return
        text = self._turns.refusal or msg.rstrip(".")
        body = msgspec.json.encode(ApiError(400, text, code="invalid_http").body)
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

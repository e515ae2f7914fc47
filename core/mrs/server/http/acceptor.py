"""Takes connections from the listening socket: never more than the process has room for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from mrs.server.http.errors import ApiError
from mrs.server.http.protocol import TimedProtocol

if TYPE_CHECKING:
    from ssl import SSLContext

#: How long nothing is accepted after an error, such as that no file descriptor is free.
_PAUSE_S = 0.1
#: A connection without a request is not given up for a new one before it had this time to send it.
_GRACE_S = 0.5
_BUSY = ApiError(
    503,
    "the server has as many connections as it can take: try again later",
    code="too_many_connections",
    headers={"retry-after": "1"},
)


def most_connections(wanted: int) -> int:
    """`wanted`, or half of the file descriptors of this process if that is less."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if limit == resource.RLIM_INFINITY else min(wanted, max(limit // 2, 1))


class Acceptor:
    """Accepts while there are fewer than `most` of `connections`.

    A further one takes the place of the oldest handshake of TLS, or of the one that has waited
    longest for a request; with none such, it gets status 503, or with TLS nothing. `on_problem`
    gets a line for the operator each time.
    """

    def __init__(
        self,
        listener: socket.socket,
        connections: Collection[TimedProtocol],
        most: int,
        new_protocol: Callable[[], TimedProtocol],
        on_problem: Callable[[str], None],
        tls: SSLContext | None = None,
        handshake_s: float = 60.0,
    ) -> None:
        self._listener = listener
        self._connections = connections
        self._most = most
        self._new_protocol = new_protocol
        self._on_problem = on_problem
        self._tls, self._handshake_s = tls, handshake_s
        # The address of a Unix socket is a path.
        self._is_unix = not isinstance(listener.getsockname(), tuple)
        #: Connections whose handshakes are under way, the oldest first.
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}

    async def run(self) -> None:
        """Accept connections until this is cancelled."""
        try:
            await self._accept()
        finally:
            for task in self._handshakes:
                task.cancel()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._on_problem(f"cannot accept a connection: {error.strerror or error}")
                await asyncio.sleep(_PAUSE_S)
                continue
            if not self._has_room():
                self._on_problem(f"refused a connection: {self._most} are open already")
                _refuse(connection, self._tls is None)
                await asyncio.sleep(0)  # those that are open go on
                continue
            if self._tls is None:
                await self._begin(connection)
            else:
                task = asyncio.ensure_future(self._begin(connection))
                self._handshakes[task] = connection
                task.add_done_callback(self._handshakes.pop)

    async def _begin(self, connection: socket.socket) -> None:
        """Hand a connection over, after the handshake of TLS."""
        loop = asyncio.get_running_loop()
        with suppress(OSError):  # it has left already, or does not speak TLS
            if not self._is_unix:
                # Or the end of a response waits 40 ms until the client has acknowledged its head:
                # asyncio does this only for sockets that were made by the number of TCP.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.connect_accepted_socket(
                self._new_protocol,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else self._handshake_s,
            )

    def _has_room(self) -> bool:
        if len(self._connections) + len(self._handshakes) < self._most:
            return True
        if self._handshakes:
            next(iter(self._handshakes)).cancel()
            return True
        oldest = min(self._connections, key=lambda each: each.waits_since_s)
        if oldest.waits_since_s > asyncio.get_running_loop().time() - _GRACE_S:
            return False
        oldest.abort()
        return True


def _refuse(connection: socket.socket, is_plain: bool) -> None:
    """Say why, as far as that is possible without waiting for the client."""
    if not is_plain:
        connection.close()
        return
    body = msgspec.json.encode(_BUSY.body)
    head = (
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nretry-after: 1\r\nconnection: close\r\n\r\n"
    )
    with connection, suppress(OSError):
        connection.setblocking(False)
        connection.send(head.encode() + body)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1 << 16)  # what is unread at the end would reset the connection

"""The socket that the server listens on."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping

from mrs.errors import UsageError

#: The first file descriptor that systemd passes.
_FIRST_PASSED = 3


def bind(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 is any free one. Raises UsageError."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = addresses[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except (OSError, OverflowError, UnicodeError) as error:
        number = getattr(error, "errno", None)
        hint = {
            errno.EADDRINUSE: "another program uses the port: choose another one with --port",
            errno.EACCES: "ports below 1024 need privileges: choose another one with --port",
        }.get(number or 0, "give --serve-ip an address of this machine")
        said = getattr(error, "strerror", None) or str(error)
        reason = said.partition(" (while ")[0]  # create_server adds the address
        raise UsageError(
            f"cannot listen on {host}, port {port}", where=reason, hint=hint
        ) from error


def activated(variables: Mapping[str, str]) -> socket.socket | None:
    """The socket that systemd has bound for this process, if it has; see sd_listen_fds(3).

    Raises UsageError unless it is one TCP socket.
    """
    if variables.get("LISTEN_PID") != str(os.getpid()):
        return None
    if variables.get("LISTEN_FDS") == "1":
        listener = socket.socket(fileno=_FIRST_PASSED)
        listener.set_inheritable(False)
        is_inet = isinstance(listener.getsockname(), tuple)  # that of a Unix socket is a path
        if is_inet and listener.type == socket.SOCK_STREAM:
            return listener
        listener.detach()
    raise UsageError("systemd passes no single TCP socket", hint="give one ListenStream=PORT")


def url_of(listener: socket.socket) -> str:
    """The address of the server for programs on this machine."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

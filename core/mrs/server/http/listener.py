"""The socket that the server listens on."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mrs.errors import UsageError

if TYPE_CHECKING:
    from ssl import SSLContext

#: The first file descriptor that systemd passes.
_FIRST_PASSED = 3
_BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 is any free one. Raises UsageError."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = addresses[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
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


def bind_unix(path: Path) -> socket.socket:
    """A bound socket of the file system, which its owner and group may use.

    One that a server has left behind is replaced. Raises UsageError.
    """
    try:
        _remove_unused(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(path))
            path.chmod(0o660)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
        return listener
    except AttributeError as error:  # Windows
        raise UsageError("this system has no such sockets", hint="give --port") from error
    except OSError as error:
        raise UsageError(
            f"cannot listen on {path}",
            where=error.strerror or str(error),
            hint="choose another path with --uds",
        ) from error


def _remove_unused(path: Path) -> None:
    """Remove a socket that nobody listens on. Raises OSError for what is used, or another file."""
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, "another program uses it")


def tls_context(certificate: Path, key: Path | None) -> SSLContext:
    """TLS 1.2 and later with PEM files; without `key` it is in that of the certificate.

    Raises UsageError.
    """
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    files = " and ".join(map(str, filter(None, (certificate, key))))
    try:
        # An empty password: a key that needs one would be asked for at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        raise UsageError(
            f"{files} cannot be used for TLS",
            where=(error.reason or "no certificate and key").replace("_", " ").lower(),
            hint="give PEM files that belong together, and a key without a password",
        ) from error
    except OSError as error:
        raise UsageError(f"{files} cannot be read", where=error.strerror or "") from error
    return context


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


def url_of(listener: socket.socket, *, is_tls: bool = False) -> str:
    """The address of the server for programs on this machine."""
    name = listener.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    scheme = "https" if is_tls else "http"
    host, port = name[:2]
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

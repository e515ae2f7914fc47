"""GET requests for byte ranges: redirects, a bearer token for one origin, retries, time-outs.

The standard library's client, because it is imported in a tenth of the time of the hub library.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import math
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from mrs.errors import NotReadable

TIMEOUT_S = 10.0
ATTEMPTS = 3
MAX_REDIRECTS = 10
MAX_WAIT_S = 10.0
REDIRECTS = (301, 302, 303, 307, 308)
TRANSIENT = (408, 429, 500, 502, 503, 504)
#: Failures that persist, so that a retry is useless.
_LASTING = (socket.gaierror, ConnectionRefusedError, ssl.SSLCertVerificationError)
_MAX_ERROR_BYTES = 64 * 1024
#: Addresses that a network translates to IPv4, RFC 6052.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class Unreachable(NotReadable):
    """The server did not answer: no network, an unknown host, a time-out."""


@dataclass(frozen=True)
class HttpReply:
    """The final answer after redirects; `headers` have lower-case names."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient:
    """Requests with one token, which is sent only to its own origin.

    With `only_public`, no server of this machine or of a local network is asked.
    Connections are reused: each thread has one per host.
    """

    def __init__(self, token: str | None, token_origin: str, *, only_public: bool = False) -> None:
        self._only_public = only_public
        self.token = token
        self.token_origin = _origin(token_origin)
        self._local = threading.local()
        self._tls: ssl.SSLContext | None = None

    def get(
        self,
        url: str,
        *,
        most_bytes: int,
        byte_range: tuple[int, int] | None = None,
        within_s: float = math.inf,
    ) -> HttpReply:
        """At most `most_bytes` of the content at `url`, or of its bytes [begin, end).

        Returns any final status. Raises Unreachable if no attempt gets one, or after
        `within_s` seconds.
        """
        deadline = time.monotonic() + within_s
        for attempt in range(ATTEMPTS):
            is_last = attempt + 1 == ATTEMPTS
            try:
                reply = self._follow(url, byte_range, most_bytes, deadline)
            except (OSError, http.client.HTTPException) as error:
                if is_last or isinstance(error, _LASTING) or time.monotonic() >= deadline:
                    reason = getattr(error, "strerror", None) or str(error)
                    reason = reason or type(error).__name__
                    raise Unreachable(f"no answer from {_host(url)}", where=reason) from error
                time.sleep(_wait_s(attempt))
            else:
                if is_last or reply.status not in TRANSIENT:
                    return reply
                time.sleep(_wait_s(attempt, reply.headers.get("retry-after", "")))
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _follow(
        self, url: str, byte_range: tuple[int, int] | None, most_bytes: int, deadline: float
    ) -> HttpReply:
        is_public = self._only_public
        for _ in range(MAX_REDIRECTS):
            is_public = self._connect_to(url, from_public=is_public)
            reply = self._once(url, byte_range, most_bytes, deadline)
            location = reply.headers.get("location")
            if reply.status not in REDIRECTS or location is None:
                return reply
            url = _redirected(url, location)
        raise NotReadable(f"more than {MAX_REDIRECTS} redirects", where=url)

    def _connect_to(self, url: str, *, from_public: bool) -> bool:
        """Whether the server of an address is public; NotReadable for one that is not, where a
        public one has sent us: it has no business in our network.

        Which servers a proxy may reach is the proxy's to say.
        """
        connection, _ = self._connection(url)
        if connection.host != urlsplit(url).hostname:
            return False
        if from_public:  # for each connect, those of later requests too
            connection._create_connection = self._connect_to_public  # type: ignore[attr-defined]
        if connection.sock is None:
            connection.connect()
        is_public = _is_public(connection.sock.getpeername()[0])
        if from_public and not is_public:  # connected by an earlier request
            self._drop(url)
            raise self._not_public(connection.host)
        return is_public

    def _connect_to_public(
        self, host_and_port: tuple[str, int], timeout: float, source_address: None = None
    ) -> socket.socket:
        """Looks the host up once, and connects to a public address of it; nobody else is asked.

        So no answer tells what is in the local network: one error for any host and port of it,
        and for names that lead nowhere.
        """
        host, port = host_and_port
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise self._not_public(host) from error
        addresses = [each[4] for each in infos if _is_public(str(each[4][0]))]
        if not addresses:
            raise self._not_public(host)
        failure: OSError | None = None
        for address in addresses:
            try:
                return socket.create_connection((str(address[0]), port), timeout, source_address)
            except OSError as error:
                failure = error
        assert failure is not None
        raise failure

    def _not_public(self, host: str) -> NotReadable:
        reason = "a public server redirects into the local network"
        if self._only_public:
            reason = "the server has no public address"
        return NotReadable(reason, where=host)

    def _once(
        self, url: str, byte_range: tuple[int, int] | None, most_bytes: int, deadline: float
    ) -> HttpReply:
        connection, target = self._connection(url)
        headers = {"User-Agent": "mrs", "Accept-Encoding": "identity"}
        if self.token is not None and _origin(url) == self.token_origin:
            headers["Authorization"] = f"Bearer {self.token}"
        if byte_range is not None:
            headers["Range"] = f"bytes={byte_range[0]}-{byte_range[1] - 1}"
        try:
            connection.request("GET", target, headers=headers)
            with _cut_off_at(deadline, connection.sock):
                response = connection.getresponse()
                limit = most_bytes if response.status in (200, 206) else _MAX_ERROR_BYTES
                expected = limit if response.length is None else min(limit, response.length)
                body = response.read(limit)
            if response.length is not None and len(body) < expected:
                raise http.client.IncompleteRead(body, expected - len(body))
        except BaseException:
            self._drop(url)
            raise
        if not response.isclosed():  # more would follow, which nobody asked for
            self._drop(url)
        reply_headers = {name.lower(): value for name, value in response.getheaders()}
        return HttpReply(url, response.status, reply_headers, body)

    def _connection(self, url: str) -> tuple[http.client.HTTPConnection, str]:
        """A connection for the address, and the request target."""
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connections = self._local.__dict__.setdefault("connections", {})
        origin = _origin(url)
        if origin not in connections:
            proxy = _proxy(parts)
            through_proxy = proxy is not None and parts.scheme == "http"
            connections[origin] = self._connect(parts, proxy), through_proxy
        connection, through_proxy = connections[origin]
        return connection, (url if through_proxy else target)

    def _connect(self, parts: SplitResult, proxy: SplitResult | None) -> http.client.HTTPConnection:
        via = proxy or parts
        host = via.hostname or ""
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, via.port, timeout=TIMEOUT_S)
        if self._tls is None:
            self._tls = _tls_context()
        connection = http.client.HTTPSConnection(
            host, via.port, timeout=TIMEOUT_S, context=self._tls
        )
        if proxy is not None:
            connection.set_tunnel(parts.hostname or "", parts.port, _proxy_headers(proxy))
        return connection

    def _drop(self, url: str) -> None:
        dropped = self._local.__dict__.get("connections", {}).pop(_origin(url), None)
        if dropped is not None:
            dropped[0].close()


@contextmanager
def _cut_off_at(deadline: float, connected: socket.socket) -> Iterator[None]:
    """Raises TimeoutError at the deadline, even while bytes keep arriving one by one."""
    if deadline == math.inf:
        yield
        return

    def cut_off() -> None:
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, deadline - time.monotonic()), cut_off)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if time.monotonic() < deadline:
            raise
    finally:
        timer.cancel()
    if time.monotonic() >= deadline:
        raise TimeoutError("the response takes too long")


def _redirected(url: str, location: str) -> str:
    try:
        target = urljoin(url, location)
        scheme, host, _ = _origin(target)
    except ValueError:
        scheme, host = "", None
    if scheme not in ("http", "https") or not host:
        raise NotReadable("the server redirects to an invalid address", where=location)
    return target


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _is_public(address: str) -> bool:
    """Whether an IP address is public, neither of this machine nor of a local network."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        through = parsed.ipv4_mapped or parsed.sixtofour
        if parsed in _NAT64:
            through = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
        if through is not None:
            return _is_public(str(through))
    return parsed.is_global and not parsed.is_multicast


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


def _wait_s(attempt: int, asked: str = "") -> float:
    return min(float(asked), MAX_WAIT_S) if asked.isdigit() else 0.2 * 2**attempt


def _proxy(parts: SplitResult) -> SplitResult | None:
    """The proxy for the address in the environment."""
    proxy = getproxies().get(parts.scheme)
    if not proxy or proxy_bypass(parts.hostname or ""):
        return None
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _tls_context() -> ssl.SSLContext:
    """The system's certificates, or those of certifi if Python finds none."""
    paths = ssl.get_default_verify_paths()
    context = ssl.create_default_context()
    if paths.cafile is None and paths.capath is None and not context.get_ca_certs():
        import certifi

        context.load_verify_locations(certifi.where())
    return context

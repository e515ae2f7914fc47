"""What every request passes first: an id, and checks of its origin and its key."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Collection, Iterable
from ipaddress import ip_address
from socket import gethostname
from urllib.parse import urlsplit
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mrs.server.http.errors import ApiError
from mrs.server.http.style import Style, send_error
from mrs.server.http.wire import send_body
from mrs.server.log.record import RequestRecord
from mrs.server.settings import ServerSettings

#: Paths that say nothing about requests, so that probes need no key.
_OPEN_PATHS = ("/", "/health", "/ready", "/docs", "/openapi.json")
_OPEN_FOLDER = "/page/"
_EXPOSED = "x-request-id, x-ignored-fields, x-model, retry-after"
_VALID_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_PREFLIGHT_SECONDS = 600


class Guard:
    """Checks requests before `app` gets them; `ended` gets those that this or `app` refuses.

    `style_of` a path is that of its errors. On those that are `managing` a client changes what all
    others get: with admin keys, only these open them; without any key, only a server that this
    machine alone can reach.

    Without keys, the Host header must name this machine: a page whose name is bound to this
    address anew (DNS rebinding) cannot fake that. Pages of other origins need a permission.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        ended: Callable[[RequestRecord, str], None],
        style_of: Callable[[str], Style],
        managing: Collection[str] = (),
    ) -> None:
        self._app = app
        self._style_of = style_of
        self._ended = ended
        self._admin_keys = [key.encode() for key in settings.admin_keys]
        self._keys = [key.encode() for key in settings.api_keys]
        self._is_public = settings.is_public
        self._managing = managing
        self._origins = frozenset(settings.allowed_origins)
        names = ("localhost", gethostname(), settings.host, *settings.allowed_hosts)
        self._hosts = frozenset(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # uvicorn's lifespan protocol is off
            return
        headers = Headers(scope=scope)
        request_id = headers.get("x-request-id", "")
        if not _VALID_ID.fullmatch(request_id):
            request_id = uuid4().hex
        added = {"x-request-id": request_id}
        state = scope.setdefault("state", {})
        state["request_id"] = request_id

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(added)
            await send(message)

        try:
            _check_length(headers)
            added.update(self._check_origin(headers))
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                await send_body(send_with_headers, {}, headers=_preflight(headers))
                return
            state["salt"] = self._check_key(headers, scope["path"])
            await self._app(scope, receive, send_with_headers)
        except ApiError as error:
            await send_error(send_with_headers, self._style_of(scope["path"]), error)
            record = RequestRecord(request_id, scope["method"], scope["path"], status=error.status)
            self._ended(record, "refused")

    def _check_origin(self, headers: Headers) -> dict[str, str]:
        """The headers that let the page of an allowed origin read the response."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._keys and not self._is_ours(host):
            raise ApiError(
                403,
                f"the host {host[:100]!r} is not allowed: start the server with --allow-host, "
                "or with an API key",
                code="host_not_allowed",
            )
        if origin is None or origin.partition("://")[2].lower() == host.lower():
            return {}
        if not self._origins & {origin, "*"}:
            raise ApiError(
                403,
                f"pages of {origin[:100]!r} may not call this server: start it with --allow-origin",
                code="origin_not_allowed",
            )
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": _EXPOSED,
            "vary": "Origin",
        }

    def _is_ours(self, host: str) -> bool:
        """Whether a Host header is an address or a name of this machine, or an allowed name."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        return name in self._hosts or name.endswith(".localhost") or _is_address(name)

    def _check_key(self, headers: Headers, path: str) -> bytes:
        """A value that differs between keys. Raises ApiError for a wrong key."""
        manages = path in self._managing
        wanted = self._admin_keys if manages and self._admin_keys else self._keys
        if manages and not wanted and self._is_public:
            raise ApiError(
                403,
                "nobody may change the models of a server that needs no key: start it with "
                "--admin-key-file",
                code="admin_key_needed",
            )
        if not wanted or path in _OPEN_PATHS or path.startswith(_OPEN_FOLDER):
            return b""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not given:
            raise ApiError(
                401, "no API key is given: send Authorization: Bearer KEY", code="missing_api_key"
            )
        key = given.encode("latin-1", "replace")
        if not _is_one_of(key, [*self._keys, *self._admin_keys]):
            raise ApiError(401, "the API key is wrong: ask the operator", code="invalid_api_key")
        if not _is_one_of(key, wanted) and manages:
            raise ApiError(
                403, f"{path} needs an admin key: ask the operator", code="admin_key_needed"
            )
        return hashlib.sha256(b"mrs prefix cache\0" + given.encode()).digest()


def _check_length(headers: Headers) -> None:
    """Raises ApiError for a body with two lengths: a proxy may take the other one, and what it
    takes for a body would be the next request here, which the proxy has not seen."""
    if "content-length" in headers and "transfer-encoding" in headers:
        raise ApiError(
            400,
            "the body has two lengths: leave out content-length, or transfer-encoding",
            code="invalid_http",
            headers={"connection": "close"},
        )


def _is_one_of(given: bytes, keys: Iterable[bytes]) -> bool:
    """Takes the same time for every wrong key of a length."""
    return sum(hmac.compare_digest(given, key) for key in keys) > 0


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _preflight(headers: Headers) -> dict[str, str]:
    """Allows whatever headers the page wants to send: SDKs send some that change by release."""
    return {
        "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
        "access-control-allow-headers": headers.get("access-control-request-headers", ""),
        "access-control-allow-private-network": "true",
        "access-control-max-age": str(_PREFLIGHT_SECONDS),
    }

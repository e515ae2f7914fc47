"""The ASGI application: routes, and what every request passes first."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, cast

from starlette.exceptions import HTTPException
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from mrs.server.http.errors import ApiError
from mrs.server.http.guard import Guard
from mrs.server.http.wire import Raw, send_body
from mrs.server.routes.table import MANAGING, ROUTES, starlette_routes, style_of
from mrs.server.service import Service

_VERSION = "/v1"
#: Paths of other programs for the same.
_OTHERS = {"/v2/rerank": "/v1/rerank"}


def build_app(service: Service) -> ASGIApp:
    router = build_router(service)
    settings = service.settings
    guard = Guard(router, settings, service.ended, style_of, MANAGING)
    app: Any = _OneSpelling(guard, settings.root_path)
    if settings.trusted_proxies:
        app = _BehindProxies(app, settings.trusted_proxies)
    return cast(ASGIApp, app)


def build_router(service: Service) -> ASGIApp:
    """The routes alone, for requests that need no check."""
    return _OneShape(Router(starlette_routes(service), redirect_slashes=False))


class _OneSpelling:
    """Gives the paths of requests the spelling that the table of routes has.

    A proxy may leave `root_path` before them, or not.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root = root_path
        self._spellings = Spellings([each.path for each in ROUTES])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if self._root and scope["path"] == self._root:
                # The addresses in the page are relative.
                headers = {"location": f"{self._root}/"}
                await send_body(send, Raw(b""), status=307, headers=headers)
                return
            if self._root and scope["path"].startswith(f"{self._root}/"):
                scope["path"] = scope["path"].removeprefix(self._root)
            scope["path"] = self._spellings(scope["path"])
        await self._app(scope, receive, send)


class _BehindProxies:
    """Believes the X-Forwarded headers of proxies; those of a Unix socket have the name `unix`."""

    def __init__(self, app: Any, trusted: Sequence[str]) -> None:
        self._app = ProxyHeadersMiddleware(app, list(trusted))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope.get("client") is None:
            scope["client"] = ("unix", 0)
        await self._app(scope, receive, send)


class _OneShape:
    """Gives the errors of the router the shape of all others. Raises ApiError."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # so that the router raises its errors, and does not answer them
        try:
            await self._app(scope, receive, send)
        except HTTPException as error:
            path, method = scope["path"], scope["method"]
            code, message = {
                404: ("unknown_path", f"there is no path {path}"),
                405: ("method_not_allowed", f"{path} does not take {method}"),
            }[error.status_code]
            raise ApiError(
                error.status_code,
                f"{message}: /docs lists all",
                code=code,
                headers=error.headers or {},
            ) from None


class Spellings:
    """Knows the paths of the server; those under `/v1` may be written without it.

    Slashes may be doubled, or stand at the end: a base address often ends with one. The case of
    letters counts.
    """

    def __init__(self, paths: Collection[str]) -> None:
        firsts = {_first(each) for each in paths if not each.startswith(f"{_VERSION}/")}
        versioned = (each for each in paths if each.startswith(f"{_VERSION}/"))
        self._versioned = {_first(each.removeprefix(_VERSION)) for each in versioned} - firsts

    def __call__(self, path: str) -> str:
        """The path as the table of routes has it."""
        path = re.sub("//+", "/", path)
        if path != "/":
            path = path.removesuffix("/")
        path = f"{_VERSION}{path}" if _first(path) in self._versioned else path
        return _OTHERS.get(path, path)


def _first(path: str) -> str:
    return path.split("/", 2)[1] if path.startswith("/") else ""

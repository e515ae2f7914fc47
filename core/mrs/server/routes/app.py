"""The ASGI application: routes, and what every request passes first."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from mrs.server.http.errors import ApiError
from mrs.server.http.guard import Guard
from mrs.server.http.wire import send_error
from mrs.server.routes.table import starlette_routes
from mrs.server.service import Service


def build_app(service: Service) -> ASGIApp:
    router = Router(starlette_routes(service), default=_not_found, redirect_slashes=False)
    return Guard(_OneShape(router), service.settings, service.ended)


class _OneShape:
    """Gives the errors of the router the shape of all others."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # so that a wrong method is raised, not answered
        try:
            await self._app(scope, receive, send)
        except HTTPException as error:
            message = f"{scope['path']} does not take {scope['method']}"
            await send_error(
                send, ApiError(error.status_code, message, headers=error.headers or {})
            )


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        message = f"there is no path {scope['path']}: /docs lists all"
        await send_error(send, ApiError(404, message, code="unknown_path"))

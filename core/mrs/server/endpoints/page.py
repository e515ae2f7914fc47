"""`/`: a page to chat with the model, its files, and the plan that it draws."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from mrs.plan.report.document import to_document
from mrs.server.http.errors import ApiError
from mrs.server.http.exchange import Exchange
from mrs.server.http.wire import Raw
from mrs.server.service import Service

_FOLDER = Path(__file__).parents[1] / "page"
_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
#: Only the page's own files run or are fetched, and no text of a reply becomes markup.
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


async def chat_page(service: Service, exchange: Exchange, _: Any) -> Raw:
    """A page to chat with the model."""
    return _file(exchange, "index.html")


async def page_file(service: Service, exchange: Exchange, _: Any) -> Raw:
    """A style sheet or a script of the chat page."""
    return _file(exchange, exchange.path_params["name"])


async def plan(service: Service, exchange: Exchange, _: Any) -> dict[str, Any]:
    """The plan of the loaded model, as `mrs plan --json` describes it."""
    slot = service.models.default
    found = to_document((await service.use(exchange, slot)).plan)
    found["model"]["model_id"] = slot.name  # clients need not know a local folder
    return found


def _file(exchange: Exchange, name: str) -> Raw:
    content = _files().get(name)
    if content is None:
        raise ApiError(404, f"the page has no file {name[:100]!r}", code="unknown_path")
    exchange.response_headers |= _HEADERS
    return content


@cache
def _files() -> dict[str, Raw]:
    return {
        path.name: Raw(path.read_bytes(), f"{_MEDIA_TYPES[path.suffix]}; charset=utf-8")
        for path in _FOLDER.iterdir()
        if path.suffix in _MEDIA_TYPES
    }

"""`/`: a page to chat with the model, its files, and the plan that it draws."""

from __future__ import annotations

import asyncio
import gzip
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from mrs.plan.report.document import to_document
from mrs.server.http.errors import ApiError
from mrs.server.http.exchange import Exchange
from mrs.server.http.wire import Raw
from mrs.server.service import Service

_FOLDER = Path(__file__).parents[1] / "page"
_MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
}
#: Only the page's own files run or are fetched, DOMPurify alone makes markup of a reply, and the
#: only worker reads PDF files.
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; worker-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types dompurify pdf-worker"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "vary": "accept-encoding",
}
_CACHE_CONTROL = "no-cache"
#: The folder of a library has its version in its name.
_CACHE_CONTROL_OF_LIBRARIES = "public, max-age=31536000, immutable"


class _File(NamedTuple):
    """A file of the page, as it is and compressed."""

    plain: Raw
    compressed: Raw


async def chat_page(service: Service, exchange: Exchange, _: Any) -> Raw:
    """A page to chat with the model."""
    return await _file(exchange, "index.html")


async def page_file(service: Service, exchange: Exchange, _: Any) -> Raw:
    """A style sheet or a script of the chat page."""
    return await _file(exchange, exchange.path_params["name"])


async def plan(service: Service, exchange: Exchange, _: Any) -> dict[str, Any]:
    """The plan of a loaded model, as `mrs plan --json` describes it.

    `?model=` names it; without, it is that of the default model, which is loaded if need be.
    """
    name = exchange.query.get("model")
    slot = service.slot_of(exchange, name, takes_adapters=True)
    if name and not slot.is_loaded:
        raise ApiError(409, f"{slot.name} is not loaded: ask it something", "model", "not_loaded")
    found = to_document((await service.use(exchange, slot)).plan)
    found["model"]["model_id"] = slot.name  # clients need not know a local folder
    return found


async def _file(exchange: Exchange, name: str) -> Raw:
    files = await asyncio.to_thread(_files)
    file = files.get(name)
    if file is None:
        raise ApiError(404, f"the page has no file {name[:100]!r}", code="unknown_path")
    is_library = name.startswith("vendor/")
    exchange.response_headers |= {
        **_HEADERS,
        "cache-control": _CACHE_CONTROL_OF_LIBRARIES if is_library else _CACHE_CONTROL,
    }
    if "gzip" not in exchange.headers.get("accept-encoding", ""):
        return file.plain
    exchange.response_headers["content-encoding"] = "gzip"
    return file.compressed


@cache
def _files() -> dict[str, _File]:
    """All files, by their names; the first call reads and compresses them."""
    return {
        path.relative_to(_FOLDER).as_posix(): _read(path)
        for path in _FOLDER.rglob("*")
        if path.suffix in _MEDIA_TYPES
    }


def _read(path: Path) -> _File:
    content, media_type = path.read_bytes(), f"{_MEDIA_TYPES[path.suffix]}; charset=utf-8"
    return _File(Raw(content, media_type), Raw(gzip.compress(content), media_type))

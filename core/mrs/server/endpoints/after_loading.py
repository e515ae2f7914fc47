"""Streams that begin with the progress of loading their model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from msgspec.structs import replace

from mrs.server.schemas.response import ResponseFields

Chunk = TypeVar("Chunk", bound=ResponseFields)


async def after_loading(
    shares: AsyncGenerator[float],
    empty: Chunk,
    chunks: Callable[[], Awaitable[AsyncIterator[Chunk]]],
) -> AsyncIterator[Chunk]:
    """An `empty` chunk for each share that is loaded; then the chunks of the reply."""
    async with aclosing(shares) as loaded:
        async for share in loaded:
            yield replace(empty, load_progress=share)
    async for chunk in await chunks():
        yield chunk

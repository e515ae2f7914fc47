"""How the interfaces that the server speaks write their errors, and end their streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
from starlette.types import Send

from mrs.server.http.errors import ApiError, ErrorBody
from mrs.server.http.wire import NamedEvent, send_body


@dataclass(frozen=True)
class Style:
    """The body of errors, and whether the last event of a stream is `[DONE]`."""

    error_type: type[msgspec.Struct]
    error_body: Callable[[ApiError], msgspec.Struct]
    ends_with_done: bool


class AnthropicErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong."""

    type: str
    message: str


class AnthropicError(NamedEvent, frozen=True, kw_only=True, tag="error"):
    """An error in the shape of Anthropic's interface, as a body or as an event of a stream."""

    error: AnthropicErrorDetail


#: What Anthropic calls errors otherwise than OpenAI does, by status.
_ANTHROPIC_TYPES = {413: "request_too_large", 500: "api_error", 503: "overloaded_error"}


def _anthropic_body(error: ApiError) -> AnthropicError:
    detail = error.body.error
    kind = _ANTHROPIC_TYPES.get(error.status, detail.type)
    return AnthropicError(error=AnthropicErrorDetail(type=kind, message=detail.message))


OPENAI = Style(ErrorBody, lambda error: error.body, ends_with_done=True)
ANTHROPIC = Style(AnthropicError, _anthropic_body, ends_with_done=False)


async def send_error(
    send: Send, style: Style, error: ApiError, headers: Mapping[str, str] | None = None
) -> None:
    """A whole response that tells of an error."""
    headers = {**(headers or {}), **error.headers}
    await send_body(send, style.error_body(error), status=error.status, headers=headers)

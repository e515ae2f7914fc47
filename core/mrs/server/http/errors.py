"""Errors of the HTTP interface, in the one shape that OpenAI's clients expect."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from mrs.engine.sequence import DeadlineExceeded, QueueFull
from mrs.errors import (
    ContextFull,
    DoesNotFit,
    MrsError,
    NoRoom,
    NotReadable,
    Unsupported,
    UsageError,
    is_out_of_memory,
    shortened,
)

_logger = logging.getLogger(__name__)

#: What clients use to choose the class of an exception, by status.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}


class ErrorDetail(msgspec.Struct, frozen=True):
    """`param` is the field of the request that is wrong; `code` is for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every response that is not a success."""

    error: ErrorDetail


@dataclass
class ApiError(Exception):
    """An error with its HTTP status; the message ends with a hint what to try."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> ErrorBody:
        kind = _TYPES.get(self.status)
        if kind is None:
            kind = "invalid_request_error" if self.status < 500 else "internal_error"
        return ErrorBody(ErrorDetail(shortened(self.message, 1000), kind, self.param, self.code))


@contextmanager
def errors_of(param: str | None, **fields: str) -> Iterator[None]:
    """Gives all errors the API's form; `param` is the field that causes those of the request.

    For an error about a subject (`mrs.errors.about`) it is the one that `fields` has for that.
    """
    try:
        yield
    except Exception as error:
        subject = error.subject if isinstance(error, MrsError) else ""
        raise api_error(error, fields.get(subject, param)) from error


def api_error(error: Exception, param: str | None = None) -> ApiError:
    """The API's form of any error; `param` is the field that caused it if it is the request's."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextFull):
        hint = "shorten it, or send truncate_sequence" if error.can_be_cut else "shorten it"
        return ApiError(400, f"{error.what}: {hint}", param, "context_length_exceeded")
    if isinstance(error, QueueFull):
        return ApiError(429, str(error), code="queue_full", headers={"retry-after": "1"})
    if isinstance(error, DeadlineExceeded):
        # A client that tries again would let everything be computed again.
        return ApiError(408, str(error), code="timeout", headers={"x-should-retry": "false"})
    if isinstance(error, NoRoom):
        return ApiError(503, str(error), code="no_memory_now", headers={"retry-after": "1"})
    if isinstance(error, DoesNotFit):
        return ApiError(400, str(error), param, "does_not_fit")
    if isinstance(error, (UsageError, NotReadable, Unsupported)):
        return ApiError(400, str(error), param, "invalid_value")
    if isinstance(error, MrsError):
        return ApiError(500, str(error), code="internal_error")
    if is_out_of_memory(error):
        message = "the server has too little memory for this request: try a smaller one, or later"
        return ApiError(503, message, code="out_of_memory", headers={"retry-after": "5"})
    _logger.error("a request failed: %s: %s", type(error).__name__, error, exc_info=error)
    return ApiError(500, "internal error: the server's log says what", code="internal_error")

"""One request while it is answered."""

from __future__ import annotations

import asyncio
import codecs
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.types import Message, Receive, Scope, Send

from mrs.process.encodings import other_encoding
from mrs.process.turns import Client
from mrs.server.background import SHORT_BYTES
from mrs.server.http.bodies import HeldBody, decoded_bytes, ends_connection, no_memory_now
from mrs.server.http.body_pieces import (
    NotAnObject,
    convert_object,
    decode_object,
    fields_of,
    has_more,
)
from mrs.server.http.errors import ApiError
from mrs.server.http.json_pieces import whole_json
from mrs.server.http.pace import allowed_s
from mrs.server.http.unread_fields import unread_fields
from mrs.server.log.record import RequestRecord

Result = TypeVar("Result")
Body = TypeVar("Body", bound=msgspec.Struct)

_NAMED_FIELDS = 20
#: Commas, and brackets that open, of a body that is decoded for any model: a tenth of a second.
MOST_SIGNS = 2**18
_COUNTED = {b",": "commas", b"[": "lists", b"{": "objects"}
#: What is left of a smaller body is not looked up.
_SMALL_BODY_BYTES = 2**16
#: ASCII punctuation that field names keep in a header.
_IN_HEADERS = "!#$&'()*+-./:;<=>?@[]^_`{|}~"


class ClientGone(Exception):
    """The client has closed its connection."""


class Exchange:
    """A request, and what is collected for its response and for the log.

    `salt` differs between API keys, so that their prompts share no cached prefix.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        self._receive = receive
        self.id: str = scope["state"]["request_id"]
        self.salt: bytes = scope["state"].get("salt", b"")
        address, port = scope.get("client") or ("", 0)
        #: Whose turn it is when the request is answered: of a key, an address and a connection.
        self.client: Client = (self.salt, address, port)
        self._late_s: float | None = None
        self.headers = Headers(scope=scope)
        self.query: Mapping[str, str] = QueryParams(scope.get("query_string", b""))
        self.path_params: dict[str, Any] = scope.get("path_params", {})
        self.response_headers: dict[str, str] = {}
        #: The adapter that the request names as its model, if it does.
        self.adapter: str | None = None
        self.created = int(time.time())
        #: The memory of the body, and the values in it that stay until the end.
        self.held: HeldBody | None = None
        #: Whether it takes long to read what the body asks for.
        self.is_long = False
        self.kept: list[msgspec.Struct | bytes] = []
        self._ignored: list[str] = []
        self.record = RequestRecord(self.id, scope["method"], scope["path"])
        #: Called at the end of the request, however it ends, the last one first.
        self.cleanup: list[Callable[[], None]] = []

    def begin(self, timeout_s: float | None) -> None:
        """The request is read: its answer may take so long from now on."""
        self._late_s = None if timeout_s is None else time.monotonic() + timeout_s

    @property
    def sender(self) -> Client:
        """The client without its connection: the engine computes a sender's oldest prompt first."""
        return self.client[:-1]

    @property
    def left_s(self) -> float | None:
        """What is left of the time for the answer; None is no limit."""
        return None if self._late_s is None else max(self._late_s - time.monotonic(), 0.0)

    async def send(self, message: Message) -> None:
        """As ASGI's `send`; notes the status."""
        if message["type"] == "http.response.start":
            self.record.status = message["status"]
        await self._send(message)

    async def read_body(self, held: HeldBody, most_bytes: int, timeout_s: float) -> bytearray:
        """Raises ApiError for a body that is too large or too slow, and ClientGone.

        The whole body may take `timeout_s`, and longer as long as it comes fast enough. Its memory
        is that of `held`.
        """
        try:
            body = await self._read_body(held, most_bytes, timeout_s)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not held.is_dropped or (task is not None and task.uncancel()):
                raise
            raise no_memory_now() from None
        held.is_read()
        self.is_long = len(body) > SHORT_BYTES
        return body

    async def _read_body(self, held: HeldBody, most_bytes: int, timeout_s: float) -> bytearray:
        start_s = time.monotonic()
        length = self.headers.get("content-length", "")
        body = bytearray()
        is_complete = False
        while not is_complete:
            if len(body) > most_bytes or (length.isdecimal() and int(length) > most_bytes):
                raise ends_connection(413, f"the body has more than {most_bytes} bytes")
            try:
                late_s = start_s + allowed_s(timeout_s, len(body))
                message = await asyncio.wait_for(self._receive(), late_s - time.monotonic())
            except TimeoutError:
                raise ends_connection(408, "the body did not arrive in time") from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            body += message.get("body", b"")
            held.resize(len(body) + len(body) // 8)
            is_complete = not message.get("more_body", False)
        if len(body) > most_bytes:
            raise ends_connection(413, f"the body has more than {most_bytes} bytes")
        return body

    def decode(
        self, body: bytes | bytearray, body_type: type[Body], most_signs: int = MOST_SIGNS
    ) -> Body:
        """The request; unknown fields are named in a header. Raises ApiError.

        A type with `prepare_fields` renames and refuses some of the fields that it does not know.
        """
        if encoding := other_encoding(body):
            raise ApiError(400, f"the body is {encoding}: send UTF-8", code="invalid_json")
        for sign, name in _COUNTED.items():
            if has_more(body, sign, most_signs):
                message = f"the body has more than {most_signs} {name}: send less at once"
                raise ApiError(400, message, code="body_error")
        mark = len(codecs.BOM_UTF8) if body.startswith(codecs.BOM_UTF8) else 0
        try:
            given = decode_object(memoryview(body)[mark:])
        except NotAnObject:
            raise ApiError(400, "the body is not a JSON object", code="invalid_json") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            reason, *_ = str(error).split(" - at `")  # a place in unread JSON names no field
            raise ApiError(
                400, f"the body is not valid JSON: {reason}", code="invalid_json"
            ) from None
        return self.convert(given, body_type)

    def convert(
        self, given: dict[str, Any], body_type: type[Body], *, is_form: bool = False
    ) -> Body:
        """As `decode`, of fields that were decoded before, or read from a form."""
        known = fields_of(body_type)
        if (prepare_fields := getattr(body_type, "prepare_fields", None)) is not None:
            given = prepare_fields(given, known.keys())
        try:
            request = convert_object(given, body_type, is_form=is_form)
        except msgspec.ValidationError as error:
            raise invalid_field(error) from None
        unknown = (key for key in given if key not in known)
        self.note_ignored(sorted(islice(unknown, _NAMED_FIELDS)))
        for key, field in known.items():
            self.note_ignored(unread_fields(given.get(key), getattr(request, field.name), key))
        return request

    def kept_bytes(self) -> int:
        """The most that `kept` takes: as much as its JSON, decoded. Any thread may call this."""
        most = 0 if self.held is None else self.held.size_bytes
        if most <= _SMALL_BODY_BYTES:
            return most
        try:
            return sum(map(_kept_bytes, self.kept))
        except RecursionError:
            return most

    def give_back(self, kept_bytes: int) -> None:
        """Give back the memory of the body, but for what is kept."""
        if self.held is not None:
            self.held.shrink(kept_bytes)

    def note_ignored(self, names: Iterable[str]) -> None:
        """Name fields of the request that have no effect in a header of the response."""
        # Encoded, because a header may not begin with a space or contain a line's end.
        some = islice(names, _NAMED_FIELDS - len(self._ignored))
        self._ignored += [quote(name, safe=_IN_HEADERS) for name in some]
        if self._ignored:
            text = ", ".join(self._ignored)
            self.response_headers["x-ignored-fields"] = text[:500].rstrip(", ")

    async def unless_gone(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work`, which is cancelled as soon as the client leaves. Raises ClientGone.

        The body must have been read.
        """
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(self._disconnected())
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGone
            return task.result()
        finally:
            task.cancel()
            gone.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    async def _disconnected(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _kept_bytes(value: msgspec.Struct | bytes) -> int:
    return len(value) if isinstance(value, bytes) else decoded_bytes(whole_json(value))


def invalid_field(error: msgspec.ValidationError, inside: str = "") -> ApiError:
    """`Expected `int`, got `str` - at `$.seed`` names the field `seed`, of the object `inside`."""
    message, _, path = str(error).partition(" - at `")
    missing = message.partition("missing required field `")[2].rstrip("`")
    names = (inside, path.rstrip("`").removeprefix("$").removeprefix("."), missing)
    param = ".".join(filter(None, names)).replace(".[", "[") or None
    text = "this field is required" if missing else message[:1].lower() + message[1:]
    return ApiError(400, f"{param}: {text}" if param else text, param, "invalid_value")

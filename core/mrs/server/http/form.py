"""Requests as forms with files (multipart/form-data, RFC 7578), read by python-multipart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mrs.server.http.errors import ApiError

_MOST_FIELDS = 64
#: Of a field that is no file.
_MOST_TEXT_BYTES = 2**16
_PIECE_BYTES = 2**20
#: What is made of a form takes so much for each of its bytes: the parts, and files once more.
FORM_BYTES = 3


@dataclass
class _Part:
    headers: bytearray = field(default_factory=bytearray)
    content: bytearray = field(default_factory=bytearray)


def is_form(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == "multipart/form-data"


def read_form(body: bytes | bytearray, content_type: str) -> dict[str, Any]:
    """The fields of a form by name: files as bytes, others as texts.

    Those whose names end with [] are lists. Raises ApiError, also for two fields of one name.
    """
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import MultipartParser, parse_options_header

    parts: list[_Part] = []

    def begin() -> None:
        if len(parts) == _MOST_FIELDS:
            raise _broken(f"it has more than {_MOST_FIELDS} fields")
        parts.append(_Part())

    def header(data: bytes, start: int, end: int) -> None:
        parts[-1].headers += data[start:end]  # the library bounds their length

    def content(data: bytes, start: int, end: int) -> None:
        parts[-1].content += memoryview(data)[start:end]

    ended: list[bool] = []
    _, options = parse_options_header(content_type)
    try:
        parser = MultipartParser(
            options.get(b"boundary", b""),
            {
                "on_part_begin": begin,
                "on_header_field": header,
                "on_header_value": lambda data, start, end: header(
                    b": " + data[start:end], 0, end - start + 2
                ),
                "on_header_end": lambda: header(b"\n", 0, 1),
                "on_part_data": content,
                "on_end": lambda: ended.append(True),
            },
        )
        for start in range(0, len(body), _PIECE_BYTES):
            parser.write(bytes(body[start : start + _PIECE_BYTES]))
        parser.finalize()
    except FormParserError as error:
        raise _broken("its parts are damaged") from error
    if not ended:
        raise _broken("its end is missing")
    fields: dict[str, Any] = {}
    for name, value in map(_named, parts):
        if name.endswith("[]"):
            fields.setdefault(name, []).append(value)
        elif name in fields:
            raise _broken(f"it has two fields {name[:40]!r}")
        else:
            fields[name] = value
    return fields


def _named(part: _Part) -> tuple[str, bytes | str]:
    """The name of a part, and its bytes if it has a file name, or else its text."""
    from python_multipart.multipart import parse_options_header

    for line in bytes(part.headers).splitlines():
        key, _, value = line.partition(b": ")
        if key.lower() != b"content-disposition":
            continue
        _, options = parse_options_header(value)
        if b"name" in options:
            name = options[b"name"].decode("utf-8", "replace")
            if b"filename" in options:
                return name, bytes(part.content)
            if len(part.content) > _MOST_TEXT_BYTES:
                raise _broken(f"{name[:40]!r} has no file name, and is too long for a text")
            try:
                return name, part.content.decode()
            except UnicodeDecodeError:
                raise _broken(f"{name[:40]!r} is not UTF-8") from None
    raise _broken("a field has no name")


def _broken(reason: str) -> ApiError:
    return ApiError(400, f"the body is not a form: {reason}", code="invalid_form")

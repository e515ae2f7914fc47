"""The encoding of text that comes from elsewhere: UTF-8, with or without its signature."""

from __future__ import annotations

import codecs

from mrs.errors import NotReadable

#: What a decoder makes of the signatures of UTF-16 and UTF-32 if it replaces wrong bytes.
_REPLACED = "\ufffd\ufffd"
_OTHERS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def other_encoding(start: bytes | bytearray) -> str | None:
    """The encoding whose signature some bytes begin with, if it is not UTF-8."""
    return next((name for mark, name in _OTHERS.items() if start.startswith(mark)), None)


def text_of(data: bytes, where: str) -> str:
    """UTF-8 text without a signature; wrong bytes are replaced. Raises NotReadable for others."""
    encoding = other_encoding(data)
    if encoding is not None:
        raise _not_utf8(encoding, where)
    return data.decode("utf-8-sig", "replace")


def first_text(text: str, where: str) -> str:
    """The first text of a stream, whose decoder replaces wrong bytes, without a signature.

    Raises NotReadable for what was UTF-16.
    """
    if text.startswith(_REPLACED) and "\0" in text:
        raise _not_utf8("UTF-16", where)
    return text.removeprefix("\ufeff")


def _not_utf8(encoding: str, where: str) -> NotReadable:
    return NotReadable(f"this is {encoding}", where=where, hint="save or send it as UTF-8")

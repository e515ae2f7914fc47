"""The wire format of protocol buffers, as far as SentencePiece's models need it."""

from __future__ import annotations

from collections.abc import Iterator

#: Wire types: numbers of variable length, 8 bytes, bytes of a length, 4 bytes.
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field in order; numbers of fixed size stay bytes.

    Raises ValueError if `message` is malformed.
    """
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        value: int | bytes
        if kind == _VARINT:
            value, at = _varint(message, at)
        else:
            if kind == _BYTES:
                size, at = _varint(message, at)
            elif kind in (_FOUR, _EIGHT):
                size = 4 if kind == _FOUR else 8
            else:
                raise ValueError(f"wire type {kind} at byte {at}")
            value = message[at : at + size]
            at += size
            if at > end:
                raise ValueError("it ends within a field")
        yield number, value


def signed(value: int) -> int:
    """A varint of type int32."""
    return value - (1 << 64) if value >> 63 else value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place after it."""
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError(f"a number at byte {at} does not end")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7

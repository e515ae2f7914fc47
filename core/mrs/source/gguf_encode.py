"""Encode the header of a GGUF file, version 3: metadata and the infos of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import pack
from typing import Any

from mrs.errors import Unsupported
from mrs.formats import Format
from mrs.source.gguf_header import DEFAULT_ALIGNMENT, MAGIC
from mrs.source.gguf_values import ARRAY, SCALARS, STRING, GgufCodec, HeaderBytes
from mrs.source.reader import LocalFile

_VERSION = 3
_NUMBERS = {code: number for number, code in SCALARS.items()}
_FLAG, _INTEGER, _NATURAL, _LONG, _FLOAT = (_NUMBERS[code] for code in "?iIQf")


@dataclass(frozen=True)
class Encoded:
    """A value of metadata as it is in a file: its type and its bytes."""

    data: bytes


@dataclass(frozen=True)
class NewTensor:
    """A tensor of a file to be written; `shape` is row-major, as that of a `TensorInfo`."""

    name: str
    shape: tuple[int, ...]
    format: Format

    @property
    def size_bytes(self) -> int:
        return self.format.size_bytes(self.shape)

    @property
    def padded_bytes(self) -> int:
        """Bytes from its start to that of the next tensor."""
        return _padded(self.size_bytes)


def header(metadata: Mapping[str, Any], tensors: Sequence[NewTensor]) -> bytes:
    """The bytes before the first tensor; tensors follow in this order, padded.

    A value is `Encoded`, a text, a number, a flag, or a list of one of these. Numbers are natural
    ones of 32 bits or floats, those of lists integers of 32 bits, as llama.cpp's converter has
    them.
    """
    parts = [MAGIC, pack("<IQQ", _VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_text(key), value.data if isinstance(value, Encoded) else _value(value)]
    offset = 0
    for each in tensors:
        sizes = each.shape[::-1]
        assert each.format.ggml_type is not None
        parts += [_text(each.name), pack(f"<I{len(sizes)}Q", len(sizes), *sizes)]
        parts.append(pack("<IQ", each.format.ggml_type, offset))
        offset += each.padded_bytes
    data = b"".join(parts)
    return data.ljust(_padded(len(data)), b"\0")


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return pack("<I", STRING) + _text(value)
    if isinstance(value, (list, tuple)):
        return pack("<I", ARRAY) + _items(value)
    kind = _kind(value)
    if kind == _NATURAL and value >= 1 << 32:
        kind = _LONG
    return pack(f"<I{SCALARS[kind]}", kind, value)


def _items(values: Sequence[Any]) -> bytes:
    """The type, the number and the bytes of the values of a list, which are all alike."""
    first = values[0] if values else 0
    if isinstance(first, str):
        return pack("<IQ", STRING, len(values)) + b"".join(map(_text, values))
    kind = _kind(first)
    kind = _INTEGER if kind == _NATURAL else kind
    return pack(f"<IQ{len(values)}{SCALARS[kind]}", kind, len(values), *values)


def _kind(value: float) -> int:
    if isinstance(value, bool):
        return _FLAG
    if isinstance(value, float):
        return _FLOAT
    return _INTEGER if value < 0 else _NATURAL


def encoded_metadata(reader: LocalFile, file: str) -> dict[str, Encoded]:
    """The metadata of a file as they are in it, in their order.

    Raises NotReadable, and Unsupported for files whose values are stored in another way.
    """
    read = HeaderBytes(reader, file)
    read.need(len(MAGIC) + 4)
    if int.from_bytes(read.data[4:8], "little") not in (2, _VERSION):
        raise Unsupported(
            "metadata of this version of GGUF are not copied",
            where=file,
            hint="convert the model again",
        )
    codec = GgufCodec(read, "little", _VERSION)
    _, position = codec.integer(8, codec.length)
    count, position = codec.integer(position, codec.length)
    return dict(_entries(codec, position, count))


def _entries(codec: GgufCodec, position: int, count: int) -> Iterator[tuple[str, Encoded]]:
    for _ in range(count):
        key, start = codec.string(position)
        kind, position = codec.integer(start, codec.uint32)
        _, position = codec.value(position, kind)
        yield key, Encoded(bytes(codec.header.data[start:position]))

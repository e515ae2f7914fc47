"""The header of a safetensors file: an 8-byte length, then JSON, then the tensors' bytes.

The rules are those of the format's description: at most 100 MB of JSON that starts with `{`,
no name twice, offsets that count from the end of the header and cover the rest of the file
without a hole, an overlap or a byte too many.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mrs.errors import NotReadable
from mrs.formats import FORMATS, Format
from mrs.source.checkpoint import TensorInfo
from mrs.source.incomplete import AGAIN, check_start
from mrs.source.reader import ByteReader

MAX_HEADER_BYTES = 100_000_000
LENGTH_BYTES = 8
_INTEGERS = ("BOOL", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64")
_FLOATS = ("F16", "BF16", "F32", "F64", "C64", "F4", "F6_E2M3", "F6_E3M2")
_FLOATS_OF_8_BITS = ("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
DTYPES = frozenset((*_INTEGERS, *_FLOATS, *_FLOATS_OF_8_BITS))
_MAX_DIMENSIONS = 32
_MAX_COUNT = 2**63 - 1


@dataclass(frozen=True)
class SafetensorsHeader:
    """Tensors in the order of their bytes, and the free-form `__metadata__`."""

    tensors: tuple[TensorInfo, ...]
    metadata: Mapping[str, str]


def read_safetensors_header(reader: ByteReader, file: str) -> SafetensorsHeader:
    """Read and check one file's header. Raises NotReadable for a malformed header."""
    header_bytes = _header_bytes(reader, file)
    entries = _parse(reader.read(LENGTH_BYTES, header_bytes), file)
    metadata = entries.pop("__metadata__", {})
    if not _is_text_map(metadata):
        raise NotReadable("__metadata__ does not map text to text", where=file)
    data_start = LENGTH_BYTES + header_bytes
    tensors = [_tensor(name, entry, data_start, file) for name, entry in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.offset_bytes, tensor.size_bytes))
    _check_cover(tensors, data_start, reader.size_bytes, file)
    return SafetensorsHeader(tuple(tensors), metadata)


def _header_bytes(reader: ByteReader, file: str) -> int:
    start = reader.read(0, min(LENGTH_BYTES, reader.size_bytes))
    check_start(start, reader.size_bytes, file)
    if len(start) < LENGTH_BYTES:
        raise NotReadable(
            f"{reader.size_bytes} bytes are too few for a safetensors file", where=file, hint=AGAIN
        )
    header_bytes = int.from_bytes(start, "little")
    if header_bytes > MAX_HEADER_BYTES:
        raise NotReadable(
            f"the header claims {header_bytes} bytes, more than the limit of {MAX_HEADER_BYTES}",
            where=file,
            hint="is this a safetensors file?",
        )
    if LENGTH_BYTES + header_bytes > reader.size_bytes:
        raise NotReadable(
            f"truncated: a header of {header_bytes} bytes in a file of {reader.size_bytes}",
            where=file,
            hint=AGAIN,
        )
    return header_bytes


def _parse(text: bytes, file: str) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise NotReadable("the header does not start with '{'", where=file)
    try:
        entries: dict[str, Any] = json.loads(text.decode(), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise NotReadable("the header is not valid JSON", where=file, hint=str(error)) from error
    return entries


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name occurs twice")
    return entries


def _is_text_map(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _tensor(name: str, entry: Any, data_start: int, file: str) -> TensorInfo:
    try:
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError) as error:
        raise _wrong(name, "needs dtype, shape and data_offsets", file) from error
    if not _is_counts(shape):
        raise _wrong(name, "has a shape that is not a list of sizes", file)
    if not _is_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _wrong(name, "has data_offsets that are not a range", file)
    format_, shape = _format(dtype, name, file), tuple(shape)
    begin, end = offsets
    try:
        size_bytes = _size_bytes(format_, shape)
    except ValueError as error:
        raise _wrong(name, str(error), file) from error
    if size_bytes != end - begin:
        what = f"has {end - begin} bytes, but {format_.name} {list(shape)} needs {size_bytes}"
        raise _wrong(name, what, file)
    return TensorInfo(name, shape, format_, file, data_start + begin, size_bytes)


@lru_cache(maxsize=1024)
def _size_bytes(format_: Format, shape: tuple[int, ...]) -> int:
    return format_.size_bytes(shape)


def _is_counts(value: object) -> bool:
    if not isinstance(value, list) or len(value) > _MAX_DIMENSIONS:
        return False
    if not {int}.issuperset(map(type, value)):
        return False
    return not value or (min(value) >= 0 and max(value) <= _MAX_COUNT)


def _format(dtype: object, name: str, file: str) -> Format:
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _wrong(name, f"has an unknown dtype {dtype!r}", file)
    return FORMATS[dtype]


def _check_cover(tensors: list[TensorInfo], data_start: int, size_bytes: int, file: str) -> None:
    position = data_start
    for tensor in tensors:
        if tensor.offset_bytes != position:
            fault = "overlaps the one before" if tensor.offset_bytes < position else "leaves a hole"
            raise _wrong(tensor.name, fault, file)
        position += tensor.size_bytes
    if position > size_bytes:
        raise NotReadable(
            f"truncated: {size_bytes} bytes, but the header needs {position}",
            where=file,
            hint=AGAIN,
        )
    if position < size_bytes:
        raise NotReadable(f"{size_bytes - position} bytes after the last tensor", where=file)


def _wrong(name: str, what: str, file: str) -> NotReadable:
    return NotReadable(f"tensor {name} {what}", where=file)

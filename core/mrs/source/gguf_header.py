"""The header of a GGUF file: metadata and tensor infos, versions 1 to 3, both byte orders.

Layout, after the format's description in the ggml project: magic `GGUF`, version, tensor count,
metadata count; metadata as key, type, value; tensor infos as name, dimensions (innermost
first), type, offset; padding to `general.alignment`; the tensors' bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mrs.errors import NotReadable, Unsupported
from mrs.formats import GGML_FORMATS, Format
from mrs.source.checkpoint import TensorInfo
from mrs.source.gguf_values import ByteOrder, GgufCodec, HeaderBytes
from mrs.source.incomplete import AGAIN, check_start
from mrs.source.reader import ByteReader

MAGIC = b"GGUF"
VERSIONS = (1, 2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
#: ggml numbers its types densely from 0; a larger number is damage, not a new type.
_MAX_TYPE = 255
_FIXED_BYTES = 8


@dataclass(frozen=True)
class GgufHeader:
    """The content of a GGUF file before its weights.

    `metadata` has Python values, lists for short arrays, LazyArray for long ones. `tensors`
    are in the file's order, with row-major shapes. `data_offset` is where their bytes start.
    """

    version: int
    byte_order: ByteOrder
    metadata: Mapping[str, Any]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_offset: int


def read_gguf_header(reader: ByteReader, file: str) -> GgufHeader:
    """Read and check one file's header.

    NotReadable names the file and what is wrong with it; Unsupported is for newer versions and
    tensor types.
    """
    header = HeaderBytes(reader, file)
    version, order = _version(header)
    codec = GgufCodec(header, order, version)
    tensor_count, position = codec.integer(_FIXED_BYTES, codec.length)
    value_count, position = codec.integer(position, codec.length)
    header.need(
        position, position + tensor_count + value_count
    )  # counts beyond the file are damage
    codec.check_count(tensor_count, "tensors")
    codec.check_count(value_count, "entries of metadata")
    metadata, position = _metadata(codec, position, value_count, tensor_count)
    alignment = _alignment(metadata, file)
    fields, position = _tensor_fields(codec, position, tensor_count)
    data_offset = -(-position // alignment) * alignment
    tensors = tuple(_tensor(*field, data_offset, alignment, file) for field in fields)
    _check_ranges(tensors, reader.size_bytes, file)
    return GgufHeader(version, order, metadata, tensors, alignment, data_offset)


def _version(header: HeaderBytes) -> tuple[int, ByteOrder]:
    size_bytes = header.reader.size_bytes
    # Every version has the version number and two counts: at least 8 + 2 * 4 bytes.
    header.need(min(size_bytes, _FIXED_BYTES), min(size_bytes, 2 * _FIXED_BYTES))
    check_start(bytes(header.data[:8]), size_bytes, header.file)
    magic = bytes(header.data[:4])
    if magic != MAGIC and not MAGIC.startswith(magic):
        raise NotReadable(f"not a GGUF file: it starts with {magic!r}", where=header.file)
    if size_bytes < 2 * _FIXED_BYTES:
        raise NotReadable(f"truncated: {size_bytes} bytes", where=header.file, hint=AGAIN)
    order: ByteOrder = "little"
    version = int.from_bytes(header.data[4:8], "little")
    # Read as little-endian, a big-endian file has its version number in the upper half.
    if version and not version & 0xFFFF:
        order, version = "big", int.from_bytes(header.data[4:8], "big")
    if version not in VERSIONS:
        raise Unsupported(
            f"GGUF version {version}", where=header.file, hint="versions 1 to 3 are supported"
        )
    return version, order


def _metadata(
    codec: GgufCodec, position: int, value_count: int, tensor_count: int
) -> tuple[dict[str, Any], int]:
    header, metadata = codec.header, {}
    least_value = codec.length.size + 4 + 1
    least_tensor = codec.length.size + 4 + 4 + 8
    for left in range(value_count, 0, -1):
        header.reserved_bytes = (left - 1) * least_value + tensor_count * least_tensor
        header.need(position, position + least_value)
        key, position = codec.string(position)
        kind, position = codec.integer(position, codec.uint32)
        if key in metadata:
            raise NotReadable(f"metadata {key} occurs twice", where=header.file)
        metadata[key], position = codec.value(position, kind)
    return metadata, position


def _alignment(metadata: Mapping[str, Any], file: str) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise NotReadable(
            f"general.alignment is {alignment!r}, which is not a power of two", where=file
        )
    return alignment


def _tensor_fields(
    codec: GgufCodec, position: int, count: int
) -> tuple[list[tuple[str, tuple[int, ...], int, int]], int]:
    """Name, row-major shape, type number and relative offset of each tensor."""
    header, fields = codec.header, []
    least_after_name = codec.uint32.size * 2 + 8
    least_tensor = codec.length.size + least_after_name
    for left in range(count, 0, -1):
        header.reserved_bytes = (left - 1) * least_tensor + least_after_name
        name, position = codec.string(position)
        header.reserved_bytes = (left - 1) * least_tensor
        dimensions, position = codec.integer(position, codec.uint32)
        if dimensions > MAX_DIMENSIONS:
            raise NotReadable(f"tensor {name} has {dimensions} dimensions", where=header.file)
        header.need(position, position + dimensions * codec.length.size + 4 + 8)
        shape: tuple[int, ...] = ()
        for _ in range(dimensions):
            size, position = codec.integer(position, codec.length)
            shape = (size, *shape)
        type_number, position = codec.integer(position, codec.uint32)
        offset, position = codec.integer(position, codec.structs[10])
        fields.append((name, shape, type_number, offset))
    return fields, position


def _tensor(
    name: str,
    shape: tuple[int, ...],
    type_number: int,
    offset: int,
    data_offset: int,
    alignment: int,
    file: str,
) -> TensorInfo:
    format_ = _format(type_number, name, file)
    if offset % alignment:
        raise NotReadable(f"tensor {name} is not aligned to {alignment} bytes", where=file)
    try:
        size_bytes = format_.size_bytes(shape)
    except ValueError as error:
        raise NotReadable(f"tensor {name}: {error}", where=file) from error
    return TensorInfo(name, shape, format_, file, data_offset + offset, size_bytes)


def _format(type_number: int, name: str, file: str) -> Format:
    format_ = GGML_FORMATS.get(type_number)
    if format_ is None and type_number <= _MAX_TYPE:
        raise Unsupported(
            f"tensor {name} has ggml type {type_number}, which is retired or unknown",
            where=file,
        )
    if format_ is None:
        raise NotReadable(f"tensor {name} has type {type_number}: the file is corrupt", where=file)
    return format_


def _check_ranges(tensors: tuple[TensorInfo, ...], size_bytes: int, file: str) -> None:
    names, end = set(), 0
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset_bytes, tensor.size_bytes)):
        if tensor.name in names:
            raise NotReadable(f"tensor {tensor.name} occurs twice", where=file)
        if tensor.offset_bytes < end:
            raise NotReadable(f"tensor {tensor.name} overlaps the previous one", where=file)
        names.add(tensor.name)
        end = tensor.offset_bytes + tensor.size_bytes
    if end > size_bytes:
        raise NotReadable(
            f"truncated: {size_bytes} bytes, but the header needs {end}",
            where=file,
            hint=AGAIN,
        )

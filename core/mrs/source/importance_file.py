"""Importance matrices: how much the error of each column of a matrix counts, from a file.

| file                   | content, little endian                                                 |
| ---------------------- | ---------------------------------------------------------------------- |
| llama.cpp's older form | i32 entries; each: i32 length, name, i32 calls, i32 n, f32[n]          |
| llama.cpp's GGUF       | tensors NAME.in_sum2 (matrices, columns) and NAME.counts (matrices, 1) |
| mistral.rs's .cimatrix | u64 entries; each: u64 length, name, u64 n, f32[n]                     |

Values are sums or means of squares of a matrix's inputs. Only their ratios in one matrix matter. A
tensor that stacks the matrices of all experts has the columns of each, one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from struct import Struct
from typing import TYPE_CHECKING

from mrs.errors import NotReadable, Unsupported
from mrs.source.gguf_header import MAGIC, read_gguf_header
from mrs.source.reader import LocalFile, expanded

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Larger files are not importance matrices: that of the largest published model has 2 GiB.
MAX_FILE_BYTES = 8 << 30
MAX_NAME_BYTES = 1024
_SUMS, _COUNTS = ".in_sum2", ".counts"
_LLAMA = Struct("<i"), Struct("<ii")
_MISTRAL = Struct("<Q"), Struct("<Q")

Importance = Mapping[str, "NDArray[np.float32]"]


def read_importance(path: str) -> Importance:
    """The values of each tensor by its name, float32 (matrices * columns,).

    Raises NotReadable, and Unsupported for a file without names.
    """
    file = LocalFile(expanded(path))
    if file.size_bytes > MAX_FILE_BYTES:
        raise NotReadable("too large to be an importance matrix", where=path)
    start = file.read(0, min(file.size_bytes, 16))
    if start[:4] == MAGIC:
        values = _read_gguf(file, path)
    else:
        # A count of 64 bits has no upper half; one of 32 bits is followed by the length of a name.
        counts = _MISTRAL if start[4:8] == bytes(4) else _LLAMA
        if counts is _MISTRAL and start[8:] == bytes(8):
            raise Unsupported(
                "an old .cimatrix names no tensors",
                where=path,
                hint="write it again with a newer mistral.rs, or use llama.cpp's imatrix",
            )
        values = dict(_entries(file, path, *counts))
    if not values:
        raise NotReadable("the importance matrix has no entries", where=path)
    return values


def _entries(
    file: LocalFile, path: str, length: Struct, count: Struct
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Names and values; `count` may have other integers before that of the values."""
    import numpy as np

    position = 0

    def take(size: int) -> bytes:
        nonlocal position
        if not 0 <= size <= file.size_bytes - position:
            raise NotReadable(
                f"truncated or not an importance matrix: byte {position} of {file.size_bytes}",
                where=path,
            )
        position += size
        return file.read(position - size, size)

    (entries,) = length.unpack(take(length.size))
    for _ in range(entries):
        (name_bytes,) = length.unpack(take(length.size))
        name = take(min(name_bytes, MAX_NAME_BYTES)).decode("utf-8", "replace")
        *_, values = count.unpack(take(count.size))
        yield name, np.frombuffer(take(4 * values), "<f4")


def _read_gguf(file: LocalFile, path: str) -> Importance:
    import numpy as np

    header = read_gguf_header(file, path)
    if header.byte_order != "little":
        raise Unsupported("an importance matrix in big-endian order", where=path)
    tensors = {info.name: info for info in header.tensors}

    def values(name: str) -> NDArray[np.float32]:
        info = tensors.get(name)
        if info is None or info.format.name != "F32":
            raise NotReadable(f"no tensor {name} of type F32", where=path)
        if 0 in info.shape:
            raise NotReadable(f"the tensor {name} is empty", where=path)
        data = np.frombuffer(file.read(info.offset_bytes, info.size_bytes), "<f4")
        return data.reshape(info.shape[0] if len(info.shape) > 1 else 1, -1)

    squares: dict[str, NDArray[np.float32]] = {}
    for name in tensors:
        if name.endswith(_SUMS):
            base = name.removesuffix(_SUMS)
            sums, counts = values(name), values(base + _COUNTS).reshape(-1, 1)
            if len(counts) != len(sums):
                raise NotReadable(f"{base} has {len(sums)} matrices and other counts", where=path)
            squares[base] = (sums / np.maximum(counts, 1)).astype(np.float32).ravel()
    return squares

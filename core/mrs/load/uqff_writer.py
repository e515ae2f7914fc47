"""Write UQFF files: safetensors with the layers of a model, quantized some rows at a time."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from mrs.errors import NotReadable
from mrs.formats import FORMATS
from mrs.load.tensor_reader import TensorReader
from mrs.load.uqff_layers import UqffLayer
from mrs.quantization.gguf import requantize
from mrs.source.checkpoint import TensorInfo
from mrs.source.safetensors_header import LENGTH_BYTES
from mrs.source.uqff_files import DIGEST, Written
from mrs.source.uqff_tensors import VERSION, VERSION_TENSORS
from mrs.source.weights import Weights

#: Larger files are split.
SHARD_BYTES = 10 * 1024**3
_METADATA = {"uqff.producer": "mrs", "uqff.version": ".".join(map(str, VERSION))}
_PLAIN, _GGUF = 1, 0
#: Bytes of a tensor that is copied at a time.
_CHUNK_BYTES = 1 << 22

#: Called with the bytes that were written.
OnBytes = Callable[[int], None]


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file to be written, whose bytes `read` makes chunk by chunk."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Iterable[bytes | memoryview]]

    @property
    def size_bytes(self) -> int:
        return FORMATS[self.dtype].size_bytes(self.shape)


def version_tensors() -> list[Tensor]:
    """The version of the files, which the first shard has."""
    return [
        _integers(name, "U32", value) for name, value in zip(VERSION_TENSORS, VERSION, strict=True)
    ]


def layer_tensors(
    layer: UqffLayer, files: Weights, importance: Mapping[str, torch.Tensor]
) -> list[Tensor]:
    """The tensors of one layer, whose weight is read and quantized when it is written.

    `importance` is that of columns (C,) by the names of parameters.
    """
    name, format = layer.weight, layer.format

    def rows() -> Iterator[memoryview]:
        reader = TensorReader(files)
        for piece, parameter in zip(layer.pieces, layer.parameters, strict=True):
            counts = importance.get(parameter)
            for chunk, stored in reader.chunks(piece, layer.columns):
                blocks = chunk if stored == format else requantize(chunk, stored, format, counts)
                yield blocks.contiguous().numpy().data.cast("B")

    if not format.is_quantized:
        weight = Tensor(name, format.name, layer.shape, rows)
        return [weight, _integers(f"{name}.format", "U8", _PLAIN)]
    assert format.ggml_type is not None
    return [
        Tensor(name, "U8", (layer.size_bytes,), rows),
        _integers(f"{name}.format", "U8", _GGUF),
        _integers(f"{name}.dtype", "U32", format.ggml_type),
        _integers(f"{name}.shape", "U32", *layer.shape),
    ]


def copied_tensor(info: TensorInfo, files: Weights) -> Tensor:
    """A tensor as it is in the files of the model."""

    def read() -> Iterator[memoryview]:
        for start in range(0, info.size_bytes, _CHUNK_BYTES):
            buffer = memoryview(bytearray(min(_CHUNK_BYTES, info.size_bytes - start)))
            files.read_into(buffer, info, start)
            yield buffer

    return Tensor(info.name, info.format.name, info.shape, read)


def shards(groups: Iterable[Sequence[Tensor]]) -> list[list[Tensor]]:
    """Groups of tensors that stay together, in files of at most about `SHARD_BYTES`."""
    files: list[list[Tensor]] = [[]]
    filled = 0
    for group in groups:
        size_bytes = sum(each.size_bytes for each in group)
        if filled and filled + size_bytes > SHARD_BYTES:
            files.append([])
            filled = 0
        files[-1] += group
        filled += size_bytes
    return files


def write_tensors(path: Path, tensors: Sequence[Tensor], on_bytes: OnBytes) -> Written:
    """Write a safetensors file, the tensors of the widest values first. Raises NotReadable.

    The header has the hash of the tensors' bytes, with which the set's report names the file.
    """
    ordered = sorted(tensors, key=lambda each: (-FORMATS[each.dtype].block_bytes, each.name))
    digest = hashlib.sha256()
    try:
        with path.open("wb") as file:
            file.write(_header(ordered, "0" * len(digest.hexdigest())))
            for tensor in ordered:
                for part in tensor.read():
                    file.write(part)
                    digest.update(part)
                    on_bytes(len(part))
            size_bytes = file.tell()
            file.seek(0)
            file.write(_header(ordered, digest.hexdigest()))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise unwritable(path, error) from error
    return Written(size_bytes, digest.hexdigest())


def unwritable(path: Path, error: OSError) -> NotReadable:
    return NotReadable(f"cannot write {path.name}", where=str(path), hint=error.strerror or "")


def _header(tensors: Sequence[Tensor], digest: str) -> bytes:
    entries: dict[str, Mapping[str, object]] = {"__metadata__": {**_METADATA, DIGEST: digest}}
    offset = 0
    for each in tensors:
        end = offset + each.size_bytes
        entries[each.name] = {
            "dtype": each.dtype,
            "shape": each.shape,
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _integers(name: str, dtype: str, *values: int) -> Tensor:
    """A tensor of integers: one value is a scalar, except for a shape."""
    data = struct.pack(f"<{len(values)}{'B' if dtype == 'U8' else 'I'}", *values)
    shape = () if len(values) == 1 else (len(values),)
    assert len(data) == prod(shape) * FORMATS[dtype].block_bytes
    return Tensor(name, dtype, shape, lambda: [data])

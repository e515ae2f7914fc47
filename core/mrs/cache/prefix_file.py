"""What is remembered of a stretch of a sequence, as a safetensors file."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mrs.cache.layer import LayerSlice, TensorShape
from mrs.cache.prefix_parts import Exported
from mrs.cache.sequence import SequenceCache
from mrs.source.checkpoint import TensorInfo
from mrs.source.reader import LocalFile
from mrs.source.safetensors_header import read_safetensors_header

#: Changes whenever the same tokens of the same model would be written otherwise.
FORMAT = "mrs prefix 2"
_NAMES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_CHECKSUM = '"checksum": "%08x"'


@dataclass(frozen=True)
class Outline:
    """What a file holds of the tokens `start` to `end`, by its header alone.

    `firsts` has for each layer the first token of which it remembers something by itself, None
    where it does so of none.
    """

    path: Path
    start: int
    end: int
    firsts: tuple[int | None, ...]
    tensors: Mapping[str, TensorInfo]
    size_bytes: int

    def covers(self, other: Exported) -> bool:
        """Whether nothing of `other`, which is of the same tokens, is missing."""
        return all(
            piece is None or (first is not None and first <= piece.first)
            for first, piece in zip(self.firsts, other.slices, strict=True)
        )


def encode(held: Exported, tokens: Sequence[int], model: str) -> list[bytes | memoryview]:
    """The bytes of a file in parts: what `held`, in the host's memory, has of `tokens`.

    `model` is whatever else the numbers depend on. A checksum of the whole file is in its header,
    computed with zeros in its place.
    """
    tensors = sorted(_tensors(held), key=lambda item: -item[1].element_size())
    header: dict[str, Any] = {"__metadata__": _facts(held, tokens, model)}
    offset = 0
    for name, tensor in tensors:
        ends = [offset, offset + tensor.nbytes]
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": [*tensor.shape]}
        header[name]["data_offsets"], offset = ends, ends[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    parts = [_as_bytes(tensor).numpy().data for _, tensor in tensors if tensor.nbytes]
    checksum = zlib.crc32(head)
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return [_with_checksum(head, 0, checksum), *parts]


def read_outline(path: Path, start: int, tokens: Sequence[int], model: str) -> Outline:
    """Check that a file holds something of `tokens`, which begin at `start`, and what.

    Raises ValueError, NotReadable and OSError.
    """
    file = LocalFile(path)
    header = read_safetensors_header(file, path.name)
    end = start + len(tokens)
    facts = header.metadata
    if {**facts, "firsts": "", "checksum": ""} != _facts_of(start, tokens, model, "", ""):
        raise ValueError("other tokens or another model")
    firsts = json.loads(facts["firsts"])
    if not isinstance(firsts, list) or not all(
        first is None or (type(first) is int and start <= first < end) for first in firsts
    ):
        raise ValueError("odd first tokens")
    tensors = {tensor.name: tensor for tensor in header.tensors}
    return Outline(path, start, end, tuple(firsts), tensors, file.size_bytes)


def check_fits(outline: Outline, cache: SequenceCache) -> None:
    """ValueError where a file's tensors are not such as the empty `cache` would hold.

    What an image has is not known before it is there: of these tensors only the names count.
    """
    if len(outline.firsts) != len(cache.layers):
        raise ValueError("other layers")
    layers: dict[int, dict[str, TensorShape]] = {}
    for name, info in outline.tensors.items():
        layer, _, own = name.partition(".")
        shape = TensorShape(_DTYPES[info.format.name], tuple(info.shape))
        layers.setdefault(int(layer), {})[own] = shape
    for index, cached in enumerate(cache.layers):
        first, shapes = outline.firsts[index], layers.pop(index, {})
        if not (cached.fits(first, outline.end, shapes) if first is not None else not shapes):
            raise ValueError("tensors of other shapes")
    if layers:
        raise ValueError("tensors of other layers")


def read_exported(outline: Outline) -> Exported:
    """All that a file holds. ValueError if it is damaged, and OSError."""
    with outline.path.open("rb") as file:
        data = bytearray(file.read(outline.size_bytes + 1))
    head = bytes(data[: 8 + int.from_bytes(data[:8], "little")])
    stored = int(head.partition(b'"checksum": "')[2][:8], 16)
    checksum = zlib.crc32(_with_checksum(head, stored, 0))
    if zlib.crc32(memoryview(data)[len(head) :], checksum) != stored:
        raise ValueError("damaged")
    tensors = {name: _tensor(data, info) for name, info in outline.tensors.items()}
    layers: list[dict[str, Tensor]] = [{} for _ in outline.firsts]
    for name, tensor in tensors.items():
        layer, _, own = name.partition(".")
        layers[int(layer)][own] = tensor
    slices = (
        None if first is None else LayerSlice(first, named)
        for first, named in zip(outline.firsts, layers, strict=True)
    )
    return Exported(outline.start, outline.end, tuple(slices))


def _tensors(held: Exported) -> Iterator[tuple[str, Tensor]]:
    for index, piece in enumerate(held.slices):
        for name, tensor in (piece.tensors if piece else {}).items():
            yield f"{index}.{name}", tensor


def _facts(held: Exported, tokens: Sequence[int], model: str) -> dict[str, str]:
    firsts = json.dumps([piece and piece.first for piece in held.slices])
    return _facts_of(held.start, tokens, model, firsts, "0" * 8)


def _facts_of(
    start: int, tokens: Sequence[int], model: str, firsts: str, checksum: str
) -> dict[str, str]:
    return {
        "format": FORMAT,
        "model": model,
        "start": str(start),
        "tokens": " ".join(map(str, tokens)),
        "firsts": firsts,
        "checksum": checksum,
    }


def _with_checksum(head: bytes, old: int, new: int) -> bytes:
    return head.replace((_CHECKSUM % old).encode(), (_CHECKSUM % new).encode(), 1)


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _tensor(data: bytearray, info: TensorInfo) -> Tensor:
    dtype = _DTYPES[info.format.name]
    count = info.size_bytes // dtype.itemsize
    if not count:
        return torch.empty(info.shape, dtype=dtype)
    numbers = torch.frombuffer(data, dtype=dtype, count=count, offset=info.offset_bytes)
    return numbers.view(info.shape)

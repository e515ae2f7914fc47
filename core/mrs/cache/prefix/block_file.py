"""The cache of adjacent tokens of a sequence, as a safetensors file."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mrs.cache.layer_cache import LayerSlice, TensorShape
from mrs.cache.prefix.snapshot import Exported
from mrs.cache.sequence_cache import SequenceCache
from mrs.source.checkpoint import TensorInfo
from mrs.source.reader import LocalFile
from mrs.source.safetensors_header import SafetensorsHeader, read_safetensors_header

#: Changes whenever the same tokens of the same model would be written otherwise.
FORMAT = "mrs prefix 2"
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.uint8: "U8",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_SEAL_BYTES = 16
_NO_SEAL = "0" * (2 * _SEAL_BYTES)
_SEAL = '"seal": "%s"'


class _InMemory:
    """The bytes of a whole file as a reader of them."""

    def __init__(self, data: bytearray) -> None:
        self._data = data
        self.size_bytes = len(data)

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self._data[offset : offset + length])


@dataclass(frozen=True)
class BlockHeader:
    """What a file has of the tokens `start` to `end`, by its header.

    `first_tokens` has for each layer the first token of which the file has something, or None.
    """

    path: Path
    start: int
    end: int
    first_tokens: tuple[int | None, ...]
    tensors: Mapping[str, TensorInfo]
    safetensors: SafetensorsHeader

    def covers(self, other: Exported) -> bool:
        """Whether the file has all that `other` has of the same tokens."""
        return all(
            piece is None or (first is not None and first <= piece.first)
            for first, piece in zip(self.first_tokens, other.slices, strict=True)
        )


def encode(
    name: str, exported: Exported, tokens: Sequence[int], model: str, key: bytes
) -> list[bytes | memoryview]:
    """The bytes of a file, in parts, with what `exported` has of `tokens`; it is on the CPU.

    `model` names all else that the values depend on. The header has a seal: a hash, with `key`, of
    the file's name and of its bytes, in which the seal itself is zeros.
    """
    tensors = sorted(_tensors(exported), key=lambda item: -item[1].element_size())
    header: dict[str, Any] = {"__metadata__": _facts(exported, tokens, model)}
    offset = 0
    for tensor_name, tensor in tensors:
        ends = [offset, offset + tensor.nbytes]
        entry = {"dtype": _NAMES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": ends}
        header[tensor_name], offset = entry, ends[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    parts = [_as_bytes(tensor).numpy().data for _, tensor in tensors if tensor.nbytes]
    return [_with_seal(head, _NO_SEAL, _seal(name, [head, *parts], key)), *parts]


def read_header(path: Path, start: int, tokens: Sequence[int], model: str) -> BlockHeader:
    """Read what a file has of `tokens`, which begin at `start`.

    Raises ValueError, NotReadable and OSError.
    """
    file = LocalFile(path)
    header = read_safetensors_header(file, path.name)
    end = start + len(tokens)
    facts = header.metadata
    if {**facts, "firsts": "", "seal": ""} != _facts_of(start, tokens, model, "", ""):
        raise ValueError("other tokens or another model")
    first_tokens = json.loads(facts["firsts"])
    if not isinstance(first_tokens, list) or not all(
        first is None or (type(first) is int and start <= first < end) for first in first_tokens
    ):
        raise ValueError("odd first tokens")
    tensors = {tensor.name: tensor for tensor in header.tensors}
    return BlockHeader(path, start, end, tuple(first_tokens), tensors, header)


def check_fits(header: BlockHeader, cache: SequenceCache) -> None:
    """Raises ValueError if a file's tensors have not the shapes of those in the empty `cache`.

    The size of an image is not known in advance: of its tensors only the names are compared.
    """
    if len(header.first_tokens) != len(cache.layers):
        raise ValueError("other layers")
    layers: dict[int, dict[str, TensorShape]] = {}
    for name, info in header.tensors.items():
        layer, _, tensor_name = name.partition(".")
        shape = TensorShape(_DTYPES[info.format.name], tuple(info.shape))
        layers.setdefault(int(layer), {})[tensor_name] = shape
    for index, cached in enumerate(cache.layers):
        first, shapes = header.first_tokens[index], layers.pop(index, {})
        if not (cached.fits(first, header.end, shapes) if first is not None else not shapes):
            raise ValueError("tensors of other shapes")
    if layers:
        raise ValueError("tensors of other layers")


def read_exported(header: BlockHeader, key: bytes) -> Exported:
    """All contents of a file.

    ValueError if it is damaged, forged or no longer that of `header`, and OSError.
    """
    data = bytearray(header.path.read_bytes())
    head = bytes(data[: 8 + int.from_bytes(data[:8], "little")])
    stored = header.safetensors.metadata["seal"]
    unsealed = _with_seal(head, stored, _NO_SEAL)
    seal = _seal(header.path.name, [unsealed, memoryview(data)[len(head) :]], key)
    if not hmac.compare_digest(seal, stored):
        raise ValueError("damaged, or not written by this user")
    if read_safetensors_header(_InMemory(data), header.path.name) != header.safetensors:
        raise ValueError("changed while it was read")
    tensors = {name: _tensor(data, info) for name, info in header.tensors.items()}
    layers: list[dict[str, Tensor]] = [{} for _ in header.first_tokens]
    for name, tensor in tensors.items():
        layer, _, tensor_name = name.partition(".")
        layers[int(layer)][tensor_name] = tensor
    slices = (
        None if first is None else LayerSlice(first, named)
        for first, named in zip(header.first_tokens, layers, strict=True)
    )
    return Exported(header.start, header.end, tuple(slices))


def _tensors(exported: Exported) -> Iterator[tuple[str, Tensor]]:
    for index, piece in enumerate(exported.slices):
        for name, tensor in (piece.tensors if piece else {}).items():
            yield f"{index}.{name}", tensor


def _facts(exported: Exported, tokens: Sequence[int], model: str) -> dict[str, str]:
    first_tokens = json.dumps([piece and piece.first for piece in exported.slices])
    return _facts_of(exported.start, tokens, model, first_tokens, _NO_SEAL)


def _facts_of(
    start: int, tokens: Sequence[int], model: str, first_tokens: str, seal: str
) -> dict[str, str]:
    return {
        "format": FORMAT,
        "model": model,
        "start": str(start),
        "tokens": " ".join(map(str, tokens)),
        "firsts": first_tokens,
        "seal": seal,
    }


def _with_seal(head: bytes, old: str, new: str) -> bytes:
    return head.replace((_SEAL % old).encode(), (_SEAL % new).encode(), 1)


def _seal(name: str, parts: Sequence[bytes | memoryview], key: bytes) -> str:
    hashed = hashlib.blake2b(name.encode(), key=key, digest_size=_SEAL_BYTES)
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _tensor(data: bytearray, info: TensorInfo) -> Tensor:
    dtype = _DTYPES[info.format.name]
    count = info.size_bytes // dtype.itemsize
    if not count:
        return torch.empty(info.shape, dtype=dtype)
    numbers = torch.frombuffer(data, dtype=dtype, count=count, offset=info.offset_bytes)
    return numbers.view(info.shape)

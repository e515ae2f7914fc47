"""GGUF files in several shards, as llama.cpp's gguf-split makes them.

The first shard has all metadata; each says its number, how many there are, and how many tensors all
have together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import pack
from typing import Any, NamedTuple

from mrs.errors import UsageError
from mrs.source.gguf_encode import Encoded, NewTensor, header
from mrs.source.gguf_values import SCALARS
from mrs.units import human_bytes

#: `split.no` and `split.count` have 16 bits.
_MOST_SHARDS = 2**16 - 1
_NUMBERS = {code: number for number, code in SCALARS.items()}


class Shard(NamedTuple):
    """One file: its name, its bytes before the first tensor, and which tensors it has."""

    name: str
    header: bytes
    tensors: slice


def shards(
    name: str, metadata: Mapping[str, Any], tensors: Sequence[NewTensor], most_bytes: int | None
) -> list[Shard]:
    """The files of a model, none larger than `most_bytes` unless one tensor alone is.

    One file has the `name`, several have numbers in it. Raises UsageError for more shards than
    their numbers can count.
    """
    parts = [slice(0, len(tensors))]
    if most_bytes is not None:
        parts = _parts(metadata, tensors, most_bytes)
    if len(parts) == 1:
        return [Shard(name, header(metadata, tensors), parts[0])]
    if len(parts) > _MOST_SHARDS:
        raise UsageError(
            f"shards of {human_bytes(most_bytes or 0)} would be more than {_MOST_SHARDS:,}",
            where="--max-shard-size",
            hint="give larger ones",
        )
    found = []
    for number, part in enumerate(parts):
        values = {} if number else metadata
        split = _split(number, len(parts), len(tensors))
        shard_name = f"{name.removesuffix('.gguf')}-{number + 1:05}-of-{len(parts):05}.gguf"
        found.append(Shard(shard_name, header({**values, **split}, tensors[part]), part))
    return found


def _split(number: int, count: int, tensors: int) -> dict[str, Encoded]:
    return {
        "split.no": Encoded(pack("<IH", _NUMBERS["H"], number)),
        "split.count": Encoded(pack("<IH", _NUMBERS["H"], count)),
        "split.tensors.count": Encoded(pack("<Ii", _NUMBERS["i"], tensors)),
    }


def _parts(
    metadata: Mapping[str, Any], tensors: Sequence[NewTensor], most_bytes: int
) -> list[slice]:
    """Tensors that follow each other, as many in each shard as its size allows."""
    split = _split(0, 0, 0)
    size_bytes = len(header({**metadata, **split}, ()))
    empty_bytes = len(header(split, ()))
    first, parts = 0, []
    for index, tensor in enumerate(tensors):
        own_bytes = tensor.padded_bytes + len(header({}, (tensor,)))
        if index > first and size_bytes + own_bytes > most_bytes:
            parts.append(slice(first, index))
            first, size_bytes = index, empty_bytes
        size_bytes += own_bytes
    return [*parts, slice(first, len(tensors))]

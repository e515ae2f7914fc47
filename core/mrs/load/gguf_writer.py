"""Write GGUF files: the tensors of a model one after another, quantized some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from mrs.architecture.gguf_layout import GgufTensor
from mrs.formats import FORMATS, Format
from mrs.layers.rope.module import frequencies
from mrs.layers.rope.spec import Rope
from mrs.load.tensor_reader import TensorReader
from mrs.quantization.gguf import decode, requantize
from mrs.source.checkpoint import TensorInfo
from mrs.source.gguf_encode import NewTensor
from mrs.source.weights import Weights
from mrs.weights.binding import TRANSFORMS, Parameter

_FLOAT = FORMATS["F32"]
#: Bytes of a tensor that is copied at a time.
_CHUNK_BYTES = 1 << 22

#: Makes the bytes of one tensor, in order.
Read = Callable[[], Iterable[memoryview]]


def written(
    header: bytes, tensors: Iterable[tuple[NewTensor, Read]], on_bytes: Callable[[int], None]
) -> Iterator[bytes | memoryview]:
    """The parts of a file, in order. `on_bytes` is called with the bytes of each.

    Raises what reading a tensor raises.
    """
    on_bytes(len(header))
    yield header
    for tensor, read in tensors:
        done = 0
        for part in read():
            done += len(part)
            on_bytes(len(part))
            yield part
        assert done == tensor.size_bytes, tensor.name
        padding = bytes(tensor.padded_bytes - done)
        on_bytes(len(padding))
        yield padding


def copied(info: TensorInfo, files: Weights) -> Iterator[memoryview]:
    """The bytes of a tensor as they are in the model's files."""
    for start in range(0, info.size_bytes, _CHUNK_BYTES):
        buffer = memoryview(bytearray(min(_CHUNK_BYTES, info.size_bytes - start)))
        files.read_into(buffer, info, start)
        yield buffer


def converted(
    tensor: GgufTensor, format: Format, files: Weights, importance: Mapping[str, Tensor]
) -> Iterator[memoryview]:
    """The bytes of a tensor in a format, made of rows of its parameters.

    `importance` is that of columns (C,) by the names of parameters. Memory is needed for some rows,
    or for a parameter whose rows are in another order.
    """
    reader = TensorReader(files)
    for parameter in tensor.parameters:
        counts = importance.get(parameter.name)
        chunks = _rows(parameter, reader)
        if tensor.paired_heads or tensor.transposed:
            chunks = _reordered(list(_kept(chunks)), parameter, tensor)
        for chunk, stored in chunks:
            blocks = chunk if stored == format else requantize(chunk, stored, format, counts)
            yield blocks.contiguous().numpy().data.cast("B")


def rope_factors(slot: str, rope: Rope) -> Iterator[memoryview]:
    """The factors of a slot, by which the frequencies of rotary pairs are divided."""
    scaling = rope.scaling
    assert scaling is not None
    if slot == "rope.factors":
        unscaled, _ = frequencies(replace(rope, scaling=None), 0, {})
        values = unscaled / frequencies(rope, 0, {})[0]
    else:
        is_long = slot == "rope.long_factors"
        values = torch.tensor(scaling.long_factors if is_long else scaling.factors)
    yield values.float().contiguous().numpy().data.cast("B")


def _rows(parameter: Parameter, reader: TensorReader) -> Iterator[tuple[Tensor, Format]]:
    """The rows of a parameter, chunk by chunk: uint8 (R, row_bytes) and their format."""
    for piece in parameter.pieces:
        for chunk, stored in reader.chunks(piece, parameter.columns):
            if piece.transform is None:
                yield chunk, stored
                continue
            values = decode(chunk, stored)
            TRANSFORMS[piece.transform](values)
            yield values.view(torch.uint8), _FLOAT


def _kept(chunks: Iterable[tuple[Tensor, Format]]) -> Iterator[tuple[Tensor, Format]]:
    """The chunks with memory of their own, which stays valid."""
    return ((chunk.clone(), stored) for chunk, stored in chunks)


def _reordered(
    chunks: list[tuple[Tensor, Format]], parameter: Parameter, tensor: GgufTensor
) -> Iterator[tuple[Tensor, Format]]:
    """All rows in the order of the file: of each head pair by pair, or as columns."""
    stored = chunks[0][1]
    rows = torch.cat([chunk for chunk, _ in chunks])
    if tensor.paired_heads:
        halves = rows.view(tensor.paired_heads, 2, -1, rows.shape[1])
        yield halves.transpose(1, 2).reshape(rows.shape), stored
        return
    values = decode(rows, stored).view(parameter.shape).transpose(-1, -2).contiguous()
    yield values.view(-1, values.shape[-1]).view(torch.uint8), _FLOAT

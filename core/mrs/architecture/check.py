"""Compare the tensors of a checkpoint with those that the model needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from mrs.errors import NotReadable
from mrs.weights.binding import Parameter, Piece
from mrs.weights.weight_scheme import PackedWeight, TensorHeader

Tensors = Mapping[str, TensorHeader]
#: Formats of GGUF that are no weights.
_INTEGERS = ("I8", "I16", "I32", "I64")


def check_tensors(parameters: Sequence[Parameter], tensors: Tensors, where: str) -> Collection[str]:
    """The names of the `tensors` that `parameters` are read from.

    Raises NotReadable for one that is missing or has a wrong shape.
    """
    read: dict[str, _Read] = {}
    used: set[str] = set()
    for parameter in parameters:
        for piece in parameter.pieces:
            rows = parameter.rows if piece.rows is None else len(piece.rows)
            first = read.get(piece.tensor)
            if first is not None:
                read[piece.tensor] = first._replace(rows=first.rows + rows)
                continue
            read[piece.tensor] = _Read(rows, parameter.shape[1:][-1:], piece)
            if piece.packed is None:
                used.add(piece.tensor)
            else:
                used.update(name for _, name in piece.packed.tensors)
    for tensor, each in read.items():
        _check(each, tensor, tensors, where)
    return used


class _Read(NamedTuple):
    """How many rows of one tensor the model reads, and as which piece first."""

    rows: int
    columns: tuple[int, ...]
    piece: Piece


def _check(read: _Read, tensor: str, tensors: Tensors, where: str) -> None:
    piece, expected = read.piece, (read.rows, *read.columns)
    if piece.packed is not None:
        _check_packed(piece.packed, expected, tensor, tensors, where)
        return
    if tensor not in tensors:
        raise NotReadable(
            f"the tensor {tensor!r} is missing",
            where=where,
            hint="the file is incomplete or belongs to another architecture",
        )
    shape, format = tensors[tensor].shape, tensors[tensor].format
    is_bias = len(expected) == 1 and format.name == "F8_E4M3"  # of a layer in UQFF, no scale
    if not is_bias and (format.ggml_type is None or format.name in _INTEGERS):
        raise NotReadable(
            f"the tensor {tensor!r} has values of type {format.name} without scales",
            where=where,
            hint="the file is incomplete, or its config lacks the quantization",
        )
    if not _is_readable(shape, expected, piece.transposed):
        raise _wrong_shape(tensor, shape, expected, where)


@lru_cache(maxsize=1024)
def _is_readable(shape: tuple[int, ...], expected: tuple[int, ...], transposed: bool) -> bool:
    """Whether a tensor of this shape is (rows, columns), or (rows,) for a vector."""
    if transposed:
        shape = (*shape[:-2], *shape[:-3:-1])
    columns = expected[1:]
    return prod(shape) == prod(expected) and (not columns or shape[-1:] == columns)


def _check_packed(
    packed: PackedWeight, expected: tuple[int, ...], weight: str, tensors: Tensors, where: str
) -> None:
    if len(expected) < 2:
        raise NotReadable(f"the vector {weight!r} is quantized, which is not supported")
    try:
        rows = packed.layout(tensors, expected[1]).rows
    except NotReadable as error:
        raise NotReadable(error.what, where=where, hint=error.hint) from error
    if rows != expected[0]:
        raise _wrong_shape(weight, (rows, expected[1]), expected, where)


def _wrong_shape(
    tensor: str, shape: tuple[int, ...], expected: tuple[int, ...], where: str
) -> NotReadable:
    return NotReadable(
        f"the tensor {tensor!r} has shape {list(shape)}, expected {list(expected)}", where=where
    )

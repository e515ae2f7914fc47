"""Compare the tensors of a checkpoint with those that the model needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from mrs.architecture.binding import Parameter, Piece, Scales
from mrs.architecture.tensor_names import IGNORED_SUFFIXES
from mrs.errors import NotReadable, Unsupported

Shapes = Mapping[str, tuple[int, ...]]


def check_tensors(
    parameters: Sequence[Parameter], shapes: Shapes, ignored: Collection[str], where: str
) -> None:
    """Raise an error unless the tensors in `shapes` are those that `parameters` are read from.

    Tensors whose names start with one of `ignored` are skipped. Raises NotReadable for a tensor
    that is missing or has a wrong shape, Unsupported for a tensor that the model does not use.
    """
    read: dict[str, _Read] = {}
    scales: set[str] = set()
    for parameter in parameters:
        for piece in parameter.pieces:
            rows = parameter.rows if piece.rows is None else len(piece.rows)
            first = read.get(piece.tensor)
            if first is not None:
                read[piece.tensor] = first._replace(rows=first.rows + rows)
                continue
            read[piece.tensor] = _Read(rows, parameter.shape[1:][-1:], piece)
            if piece.scales is not None:
                scales.add(piece.scales.tensor)
    for tensor, each in read.items():
        _check(each, tensor, shapes, where)
    _check_all_used(shapes, read.keys() | scales, ignored, where)


def _check_all_used(
    shapes: Shapes, used: Collection[str], ignored: Collection[str], where: str
) -> None:
    for name in shapes:
        if name in used:
            continue
        if name.endswith(IGNORED_SUFFIXES) or name.startswith(tuple(ignored)):
            continue
        raise Unsupported(
            f"the tensor {name!r} is not part of this architecture",
            where=where,
            hint="choose another architecture with --arch; or the model needs an unknown feature",
        )


class _Read(NamedTuple):
    """How many rows of one tensor the model reads, and as which piece first."""

    rows: int
    columns: tuple[int, ...]
    piece: Piece


def _check(read: _Read, tensor: str, shapes: Shapes, where: str) -> None:
    found, expected, piece = _find(tensor, shapes, where), (read.rows, *read.columns), read.piece
    if piece.scales is not None:
        _check_scales(piece.scales, expected, shapes, where)
    if not _is_readable(found, expected, piece.transposed, piece.scales is not None):
        raise _wrong_shape(tensor, found, expected, where)


@lru_cache(maxsize=1024)
def _is_readable(
    found: tuple[int, ...], expected: tuple[int, ...], transposed: bool, is_scaled: bool
) -> bool:
    """Whether a tensor of shape `found` is (rows, columns), or (rows,) for a vector."""
    if transposed:
        found = (*found[:-2], *found[:-3:-1])
    if is_scaled and len(found) == 4:  # blocks of 32 values in 16 bytes
        found = (*found[:-2], found[-2] * found[-1] * 2)
    columns = expected[1:]
    return prod(found) == prod(expected) and (not columns or found[-1:] == columns)


def _check_scales(scales: Scales, values: tuple[int, ...], shapes: Shapes, where: str) -> None:
    found, expected = _find(scales.tensor, shapes, where), _shape_of_scales(values, scales.tile)
    if found != expected and (prod(found) != prod(expected) or found[-1:] != expected[-1:]):
        raise _wrong_shape(scales.tensor, found, expected, where)


@lru_cache(maxsize=1024)
def _shape_of_scales(values: tuple[int, ...], tile: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-(-count // size) for count, size in zip(values, tile, strict=True))


def _find(tensor: str, shapes: Shapes, where: str) -> tuple[int, ...]:
    if tensor not in shapes:
        raise NotReadable(
            f"the tensor {tensor!r} is missing",
            where=where,
            hint="the file is incomplete or belongs to another architecture",
        )
    return shapes[tensor]


def _wrong_shape(
    tensor: str, found: tuple[int, ...], expected: tuple[int, ...], where: str
) -> NotReadable:
    return NotReadable(
        f"the tensor {tensor!r} has shape {list(found)}, expected {list(expected)}", where=where
    )

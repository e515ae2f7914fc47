"""Compare the tensors of a checkpoint with those that the model needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from mrs.architecture.binding import Parameter, Piece
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
    read: dict[str, _RowsRead] = {}
    scales: set[str] = set()
    for parameter in parameters:
        for piece in parameter.pieces:
            if piece.tensor not in read:
                read[piece.tensor] = _RowsRead(parameter, piece)
            read[piece.tensor].rows += _rows(parameter, piece)
            if piece.scales is not None:
                scales.add(piece.scales.tensor)
    for tensor, rows_read in read.items():
        rows_read.check(tensor, shapes, where)
    _check_all_used(shapes, read.keys() | scales, ignored, where)


def _check_all_used(
    shapes: Shapes, used: Collection[str], ignored: Collection[str], where: str
) -> None:
    for name in shapes:
        if name in used or name.endswith(IGNORED_SUFFIXES) or name.startswith(tuple(ignored)):
            continue
        raise Unsupported(
            f"the tensor {name!r} is not part of this architecture",
            where=where,
            hint="choose another architecture with --arch; or the model needs an unknown feature",
        )


def _rows(parameter: Parameter, piece: Piece) -> int:
    return parameter.rows if piece.rows is None else len(piece.rows)


class _RowsRead:
    """How many rows of one tensor the model reads, and as which pieces."""

    def __init__(self, parameter: Parameter, piece: Piece) -> None:
        self.rows = 0
        self._columns = parameter.shape[1:][-1:]
        self._piece = piece

    def check(self, tensor: str, shapes: Shapes, where: str) -> None:
        found = _find(tensor, shapes, where)
        expected = (self.rows, *self._columns)
        if self._piece.transposed:
            found = (*found[:-2], *found[:-3:-1])
        if self._piece.scales is not None:
            self._check_scales(expected, tensor, shapes, where)
            if len(found) == 4:  # blocks of 32 values in 16 bytes
                found = (*found[:-2], found[-2] * found[-1] * 2)
        columns = self._columns
        if prod(found) != prod(expected) or (columns and found[-1:] != columns):
            raise _wrong_shape(tensor, shapes[tensor], expected, where)

    def _check_scales(
        self, values: tuple[int, ...], tensor: str, shapes: Shapes, where: str
    ) -> None:
        assert self._piece.scales is not None
        name, tile = self._piece.scales.tensor, self._piece.scales.tile
        expected = tuple(-(-count // size) for count, size in zip(values, tile, strict=True))
        found = _find(name, shapes, where)
        if prod(found) != prod(expected) or found[-1:] != expected[-1:]:
            raise _wrong_shape(name, found, expected, where)


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

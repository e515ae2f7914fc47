"""Hold a file's tensors against those of the model it should contain."""

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
    """NotReadable for a missing or misshapen tensor, Unsupported for one without a place.

    `ignored` are prefixes of names that nothing here needs.
    """
    read: dict[str, _Table] = {}
    scales: set[str] = set()
    for parameter in parameters:
        for piece in parameter.pieces:
            table = read.get(piece.tensor)
            if table is None:
                table = read[piece.tensor] = _Table(parameter, piece)
            table.rows += _rows(parameter, piece)
            if piece.scales is not None:
                scales.add(piece.scales.tensor)
    for tensor, table in read.items():
        table.check(tensor, shapes, where)
    for name in shapes:
        if name in read or name in scales:
            continue
        if not name.endswith(IGNORED_SUFFIXES) and not name.startswith(tuple(ignored)):
            raise Unsupported(
                f"the tensor {name!r} has no place in this architecture",
                where=where,
                hint="force another one with --arch, or the model has a part that is not known",
            )


def _rows(parameter: Parameter, piece: Piece) -> int:
    return parameter.rows if piece.rows is None else len(piece.rows)


class _Table:
    """The rows that are read of one tensor."""

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
            if len(found) == 4:  # blocks of 32 numbers in 16 bytes
                found = (*found[:-2], found[-2] * found[-1] * 2)
        columns = self._columns
        if prod(found) != prod(expected) or (columns and found[-1:] != columns):
            raise _misshapen(tensor, shapes[tensor], expected, where)

    def _check_scales(
        self, numbers: tuple[int, ...], tensor: str, shapes: Shapes, where: str
    ) -> None:
        assert self._piece.scales is not None
        name, tile = self._piece.scales.tensor, self._piece.scales.tile
        expected = tuple(-(-count // size) for count, size in zip(numbers, tile, strict=True))
        found = _find(name, shapes, where)
        if prod(found) != prod(expected) or found[-1:] != expected[-1:]:
            raise _misshapen(name, found, expected, where)


def _find(tensor: str, shapes: Shapes, where: str) -> tuple[int, ...]:
    if tensor not in shapes:
        raise NotReadable(
            f"the tensor {tensor!r} is missing",
            where=where,
            hint="the file is incomplete or belongs to another architecture",
        )
    return shapes[tensor]


def _misshapen(
    tensor: str, found: tuple[int, ...], expected: tuple[int, ...], where: str
) -> NotReadable:
    return NotReadable(
        f"the tensor {tensor!r} has shape {list(found)}, expected {list(expected)}", where=where
    )

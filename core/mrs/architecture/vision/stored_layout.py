"""Matrices that some files of a family store transposed, and others as they are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mrs.weights.binding import Parameter, Piece
from mrs.weights.weight_scheme import TensorHeader


def as_stored(
    parameters: Sequence[Parameter], tensors: Mapping[str, TensorHeader]
) -> list[Parameter]:
    """The parameters, transposed only if the shapes in the file's headers say so."""
    return [
        each._replace(pieces=tuple(_as_stored(p, each.columns, tensors) for p in each.pieces))
        if any(piece.transposed for piece in each.pieces)
        else each
        for each in parameters
    ]


def _as_stored(piece: Piece, columns: int, tensors: Mapping[str, TensorHeader]) -> Piece:
    shape = tensors[piece.tensor].shape if piece.tensor in tensors else ()
    is_plain = len(shape) > 1 and shape[-1] == columns != shape[-2]
    return piece._replace(transposed=False) if piece.transposed and is_plain else piece

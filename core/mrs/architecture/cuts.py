"""The parts of a weight that several processes have: rows or columns of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from mrs.architecture.binding import Parameter, Piece
from mrs.architecture.layers import Layer


class Cut(NamedTuple):
    """What a process has of a weight: a part of this shape, which may be nothing.

    `rows` and `columns` are ranges of the weight as a matrix; without `columns` it has all.
    """

    shape: tuple[int, ...]
    rows: Sequence[range]
    columns: Sequence[range] = ()
    is_empty: bool = False


def slot_of(parameter: Parameter) -> str:
    """`layers.3.ffn.experts.7.up.weight` is `ffn.experts.{expert}.up.weight`."""
    name = parameter.name.split(".", 2)[2]
    return re.sub(r"experts\.\d+\.", "experts.{expert}.", name)


def layer_cuts(whole: Layer, ranks: Sequence[Layer], hidden_size: int) -> list[dict[str, Cut]]:
    """What each rank has of the weights of a layer, by slot; `ranks` are the layers of each."""
    slots = [{each.name + each.suffix: each for each in one.slots(hidden_size)} for one in ranks]
    found: list[dict[str, Cut]] = [{} for _ in ranks]
    for slot in whole.slots(hidden_size):
        own = [each[slot.name + slot.suffix] for each in slots]
        all_of_it = [slot, *own]
        rows = _ranges([each.row_sections or each.shape[:1] for each in all_of_it])
        columns = _ranges([each.column_sections or each.shape[1:][-1:] for each in all_of_it])
        is_sum = slot.is_summed or any(each.shape[1:] != slot.shape[1:] for each in own)
        times = prod(slot.shape[1:-1])
        for rank, (cuts, part) in enumerate(zip(found, own, strict=True)):
            matrix_rows = [range(one.start * times, one.stop * times) for one in rows[rank]]
            cuts[slot.name + slot.suffix] = Cut(part.shape, matrix_rows, columns[rank])
            if slot.bias:
                is_empty = is_sum and rank > 0
                cuts[f"{slot.name}.bias"] = Cut(part.shape[:1], rows[rank], is_empty=is_empty)
    return found


def _ranges(sections: Sequence[tuple[int, ...]]) -> list[list[range]]:
    """What each rank has of a dimension, from the sizes of its sections: of all, and in each rank.

    A section that is as large in a rank is in each of them; others are divided in their order.
    """
    _, *ranks = sections
    found: list[list[range]] = [[] for _ in ranks]
    start = 0
    for total, *sizes in zip(*sections, strict=True):
        end = start
        for own, size in zip(found, sizes, strict=True):
            first = start if size == total else end
            end = first + size
            if own and own[-1].stop == first:
                own[-1] = range(own[-1].start, end)
            else:
                own.append(range(first, end))
        start += total
    return found


def cut_parameter(parameter: Parameter, cut: Cut) -> Parameter | None:
    """The part of a rank; None if it has none."""
    if cut.is_empty:
        return None
    pieces: Sequence[Piece] = parameter.pieces
    if cut.rows != [range(parameter.rows)]:
        pieces = _some_rows(parameter, cut.rows)
    if cut.columns and cut.columns != [range(parameter.columns)]:
        columns, whole = tuple(cut.columns), range(parameter.rows)
        pieces = [
            each._replace(
                rows=whole if each.rows is None else each.rows,
                columns=columns,
                packed=each.packed and replace(each.packed, all_columns=parameter.columns),
            )
            for each in pieces
        ]
    return parameter._replace(shape=cut.shape, pieces=tuple(pieces))


def _some_rows(parameter: Parameter, rows: Sequence[range]) -> list[Piece]:
    found = []
    for wanted in rows:
        start = 0
        for piece in parameter.pieces:
            own = range(parameter.rows) if piece.rows is None else piece.rows
            inside = own[max(wanted.start - start, 0) : max(wanted.stop - start, 0)]
            if inside:
                found.append(piece._replace(rows=inside))
            start += len(own)
    return found

"""The parts of a weight that several processes have: rows or columns of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from mrs.errors import Unsupported
from mrs.layers.layer import Layer
from mrs.weights.binding import LowRankUpdate, Parameter, Piece


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
    rank_cuts: list[dict[str, Cut]] = [{} for _ in ranks]
    for slot in whole.slots(hidden_size):
        rank_slots = [each[slot.name + slot.suffix] for each in slots]
        all_of_it = [slot, *rank_slots]
        rows = _ranges([each.row_sections or each.shape[:1] for each in all_of_it])
        columns = _ranges([each.column_sections or each.shape[1:][-1:] for each in all_of_it])
        is_sum = slot.is_summed or any(each.shape[1:] != slot.shape[1:] for each in rank_slots)
        times = prod(slot.shape[1:-1])
        for rank, (cuts, part) in enumerate(zip(rank_cuts, rank_slots, strict=True)):
            matrix_rows = [range(one.start * times, one.stop * times) for one in rows[rank]]
            cuts[slot.name + slot.suffix] = Cut(part.shape, matrix_rows, columns[rank])
            if slot.bias:
                is_empty = is_sum and rank > 0
                cuts[f"{slot.name}.bias"] = Cut(part.shape[:1], rows[rank], is_empty=is_empty)
    return rank_cuts


def _ranges(sections: Sequence[tuple[int, ...]]) -> list[list[range]]:
    """What each rank has of a dimension, from the sizes of its sections: of all, and in each rank.

    A section that is as large in a rank is in each of them; others are divided in their order.
    """
    _, *ranks = sections
    rank_ranges: list[list[range]] = [[] for _ in ranks]
    start = 0
    for total, *sizes in zip(*sections, strict=True):
        end = start
        for ranges, size in zip(rank_ranges, sizes, strict=True):
            first = start if size == total else end
            end = first + size
            if ranges and ranges[-1].stop == first:
                ranges[-1] = range(ranges[-1].start, end)
            else:
                ranges.append(range(first, end))
        start += total
    return rank_ranges


def cut_parameter(parameter: Parameter, cut: Cut) -> Parameter | None:
    """The part of a rank, with its part of all updates; None if it has none.

    Raises Unsupported for columns of a weight whose rows get a norm (DoRA).
    """
    if cut.is_empty:
        return None
    pieces, updates = parameter.pieces, parameter.updates
    if cut.rows != [range(parameter.rows)]:
        pieces = _some_rows(pieces, parameter.rows, cut.rows)
        updates = tuple(_rows_of_update(each, parameter.rows, cut.rows) for each in updates)
    if cut.columns and cut.columns != [range(parameter.columns)]:
        columns, whole = tuple(cut.columns), range(parameter.rows)
        pieces = tuple(
            each._replace(
                rows=whole if each.rows is None else each.rows,
                columns=columns,
                packed=each.packed and replace(each.packed, all_columns=parameter.columns),
            )
            for each in pieces
        )
        updates = tuple(_columns_of_update(each, columns) for each in updates)
    return parameter._replace(shape=cut.shape, pieces=pieces, updates=updates)


def _some_rows(
    pieces: Sequence[Piece], rows: int, all_wanted: Sequence[range]
) -> tuple[Piece, ...]:
    """These rows of all `rows` that the pieces have together; heads stay whole."""
    chosen = []
    for wanted in all_wanted:
        start = 0
        for piece in pieces:
            piece_rows = range(rows) if piece.rows is None else piece.rows
            inside = piece_rows[max(wanted.start - start, 0) : max(wanted.stop - start, 0)]
            if inside:
                heads = piece.paired_heads * len(inside) // len(piece_rows)
                chosen.append(piece._replace(rows=inside, paired_heads=heads))
            start += len(piece_rows)
    return tuple(chosen)


def _rows_of_update(update: LowRankUpdate, rows: int, wanted: Sequence[range]) -> LowRankUpdate:
    return update._replace(
        up=_some_rows(update.up, rows, wanted),
        magnitude=_some_rows(update.magnitude, rows, wanted),
    )


def _columns_of_update(update: LowRankUpdate, columns: tuple[range, ...]) -> LowRankUpdate:
    if update.magnitude:
        raise Unsupported(
            "adapters of DoRA cannot be shared by processes",
            hint="split the layers over processes instead: --workers",
        )
    whole = range(update.rank)
    down = tuple(
        each._replace(rows=whole if each.rows is None else each.rows, columns=columns)
        for each in update.down
    )
    return update._replace(down=down)

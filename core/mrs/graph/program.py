"""Operations as the native library interprets them, and where their values are in memory.

The loader makes native programs of these, and the plan their bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from enum import IntEnum
from functools import partial
from itertools import groupby, pairwise
from typing import NamedTuple

from mrs.graph.operations import (
    STREAM,
    Add,
    Attend,
    AttendToImages,
    ChooseKeys,
    Compute,
    Convolve,
    DeltaRule,
    Given,
    Graph,
    Mix,
    Normalize,
    Operation,
    Project,
    StateSpace,
    WriteCache,
    last_uses,
    modules_of,
    quiet_ends,
)
from mrs.layers.norm.spec import Norm

#: Values begin at multiples of this many floats for each row: a line of the processor's cache.
_LINE_FLOATS = 16
#: Most memory of the values of a piece, such as gate and up. The allocator keeps blocks of up to
#: this size; it would return a larger one to the system, which would then clear every page again
#: for the next layer.
SCRATCH_BYTES = 31 << 20
#: The rows of a piece are a multiple of this, as in native/program.c.
PIECE_TOKENS = 32


class Space(IntEnum):
    """Where a value is; the order is that of native/program.h."""

    STREAM = 0
    #: In the arena, for all rows.
    KEPT = 1
    #: In the arena after that, for the rows of a piece.
    PIECE = 2
    RESULT = 3
    #: Given with the tokens.
    GIVEN = 4


class Place(NamedTuple):
    """The floats before a value for each row of its space, and its width."""

    space: Space
    offset: int
    width: int


class Stretch(NamedTuple):
    """Operations `first` to `end` - 1.

    If their rows do not depend on each other, some pass at a time, in pieces whose values take
    `piece_floats` a row, so that they stay in memory that is used again.
    """

    first: int
    end: int
    piece_floats: int = 0

    @property
    def most_rows(self) -> int:
        """The most rows of a piece."""
        row_bytes = 4 * (self.piece_floats or 1)
        return max(SCRATCH_BYTES // (row_bytes * PIECE_TOKENS), 1) * PIECE_TOKENS

    def rows(self, tokens: int) -> int:
        """The rows of the largest of the equal pieces in which `tokens` pass."""
        pieces = -(-tokens // self.most_rows)
        return min(tokens, -(-tokens // (pieces * PIECE_TOKENS)) * PIECE_TOKENS)


class Program(NamedTuple):
    """Operations, the places of their values, and floats of the arena for each row of all.

    `given` says what the values are that a step gives, in the order of their places.
    """

    operations: tuple[Operation, ...]
    places: dict[int, Place]
    stretches: tuple[Stretch, ...]
    kept_floats: int
    given: tuple[Given, ...] = ()

    @property
    def given_floats(self) -> int:
        """The floats that a step gives, for each row."""
        return sum(each.width for each in self.places.values() if each.space == Space.GIVEN)

    def arena_floats(self, tokens: int) -> int:
        """The floats of the arena in a step of `tokens` rows."""
        pieces = (min(tokens, each.most_rows) * each.piece_floats for each in self.stretches)
        return tokens * self.kept_floats + max(pieces, default=0)


def program_of(section: Sequence[Operation], graph: Graph, result: int | None = None) -> Program:
    """The program of a section of a graph; the value `result` has memory of its own."""
    operations = _merged(section, graph.widths)
    places = {STREAM: Place(Space.STREAM, 0, graph.widths[STREAM])}
    if result is not None:
        places[result] = Place(Space.RESULT, 0, graph.widths[result])
    given = _read_of(graph.given, operations)
    for index, value in enumerate(given):
        before = sum(graph.widths[x] for x in given[:index])
        places[value] = Place(Space.GIVEN, before, graph.widths[value])
    uses, kept = last_uses(operations), _Arena()
    stretches = []
    for first, end in _stretches(operations):
        piece = _Arena()
        for index in range(first, end):
            for value in (x for x in operations[index].writes if x not in places):
                is_kept = uses[value] >= end or takes_all_rows(operations[first])
                space, arena = (Space.KEPT, kept) if is_kept else (Space.PIECE, piece)
                width = graph.widths[value]
                places[value] = Place(space, arena.take(value, width), width)
            for value in (x for x in operations[index].values if uses[x] == index):
                piece.free(value)
        # No earlier: the next piece may read its rows.
        for value in (x for each in operations[first:end] for x in each.values):
            if uses[value] < end:
                kept.free(value)
        stretches.append(Stretch(first, end, piece.floats))
    what = tuple(graph.given[value] for value in given)
    return Program(tuple(operations), places, tuple(stretches), kept.floats, what)


def _read_of(values: Collection[int], operations: Sequence[Operation]) -> list[int]:
    """The values that some operation reads."""
    read = {value for each in operations for value in each.reads}
    return [value for value in values if value in read]


class _Arena:
    """Gives values memory, and that of values which are not needed any more again."""

    def __init__(self) -> None:
        self.floats = 0
        self._taken: dict[int, range] = {}

    def take(self, value: int, width: int) -> int:
        """The offset of a new value: the first gap that is large enough."""
        size = -(-width // _LINE_FLOATS) * _LINE_FLOATS
        start = 0
        for each in sorted(self._taken.values(), key=lambda taken: taken.start):
            if each.start - start >= size:
                break
            start = each.stop
        self._taken[value] = range(start, start + size)
        self.floats = max(self.floats, start + size)
        return start

    def free(self, value: int) -> None:
        self._taken.pop(value, None)


def takes_all_rows(operation: Operation) -> bool:
    """Whether all rows pass at once: a row depends on others, or the weights are read for all."""
    reads = WriteCache | ChooseKeys | Attend | AttendToImages | Mix
    return isinstance(operation, reads) or reads_states(operation)


def reads_states(operation: Operation) -> bool:
    """Whether it reads and changes the states of sequences."""
    return isinstance(operation, Convolve | DeltaRule | StateSpace)


def _merged(section: Sequence[Operation], widths: Sequence[int]) -> list[Operation]:
    """RMS norms of whole rows before products, and sums after them, as parts of the products.

    A convolution of several values is one of each.
    """
    operations: list[Operation] = []
    uses = last_uses(section)
    for index, each in enumerate(section):
        match (operations[-1] if operations else None), each:
            case Normalize() as norm, Project() if (
                norm.out == each.x
                and uses[each.x] == index
                and norm.norm == Norm(norm.norm.eps)
                and norm.size == widths[norm.x]
            ):
                operations[-1] = replace(each, x=norm.x, norm=norm, normed=norm.out)
            case Project(added=None) as product, Add() if (
                product.outs == (each.y,) and uses[each.y] == index
            ):
                operations[-1] = replace(product, outs=(each.x,), added=each.x)
            case _, Convolve(values):
                operations += _convolutions(each, values, widths)
            case _:
                operations.append(each)
    return operations


def _convolutions(
    convolve: Convolve, values: Sequence[int], widths: Sequence[int]
) -> Iterator[Convolve]:
    """One for each value."""
    row, channel = convolve.first_row, convolve.first_channel
    for value in values:
        yield replace(convolve, values_=(value,), first_row=row, first_channel=channel)
        row, channel = row + widths[value], channel + widths[value]


def _stretches(operations: Sequence[Operation]) -> list[tuple[int, int]]:
    """Cut around what takes all rows, and wherever only the stream is alive."""
    cuts = {0, len(operations), *quiet_ends(operations)}
    for index, each in enumerate(operations):
        if takes_all_rows(each):
            cuts |= {index, index + 1}
    return list(pairwise(sorted(cuts)))


class Part(NamedTuple):
    """Adjacent operations that the native library interprets, or that torch computes."""

    operations: list[Operation]
    is_native: bool


def parts_of(graph: Graph) -> list[Part]:
    """The operations, in parts between which only the stream is alive."""
    parts: list[Part] = []
    for is_known, group in groupby(graph.sections(), partial(_is_known, graph.native)):
        sections = list(group)
        operations = [each for section in sections for each in section]
        if is_known and any(isinstance(each, Project | Mix) for each in operations):
            parts.append(Part(operations, is_native=True))
        else:
            parts += [Part(section, is_native=False) for section in sections]
    return parts


def _is_known(native: Collection[str], section: Sequence[Operation]) -> bool:
    """Whether all operations of a section are those of `native` modules, or of none."""
    return modules_of(section) <= {*native} and not any(isinstance(x, Compute) for x in section)

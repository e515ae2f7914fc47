"""The operations of a layer, on values of one row for each token.

A value is a number; its width is the count of float32 in a row. An operation that names a value `x`
and no `out` changes it. Slots are names of a layer's weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple

from mrs.layers.attention.spec import Attention, EncoderAttention
from mrs.layers.cross_attention.spec import CrossAttention
from mrs.layers.moe.spec import Moe, Router
from mrs.layers.norm.spec import Norm
from mrs.layers.rope.spec import QueryScale, Rope


class ChosenKeys(NamedTuple):
    """The positions, as int32, that each token attends to; a layer may leave them to later ones."""

    top_k: int


#: What a step gives: factors of queries, the digits of positions, a layer's own input, or room for
#: a choice of keys.
Given = QueryScale | ChosenKeys | Literal["positions", "layer input", "states"]
#: The residual stream: what the layer reads, and in the end its result.
STREAM = 0


@dataclass(frozen=True)
class Operation:
    """One step of a layer. The names of its fields that are values are in `READS` and `WRITES`."""

    READS: ClassVar[str] = "x"
    WRITES: ClassVar[str] = "x"

    @property
    def reads(self) -> tuple[int, ...]:
        """The values that it reads."""
        return tuple(self._values(self.READS))

    @property
    def writes(self) -> tuple[int, ...]:
        """The values that it makes or changes."""
        return tuple(self._values(self.WRITES))

    @property
    def values(self) -> tuple[int, ...]:
        return self.reads + self.writes

    def _values(self, names: str) -> Iterator[int]:
        for name in names.split():
            value = getattr(self, name)
            yield from value if isinstance(value, tuple) else () if value is None else (value,)


@dataclass(frozen=True)
class Normalize(Operation):
    """out = the norm of x, of each run of `size` values by itself; `out` may be x.

    One that `is_shared` is over the values of all processes, each of which has some of them.
    """

    WRITES = "out"
    x: int
    out: int
    slot: str
    norm: Norm
    size: int
    is_shared: bool = False


@dataclass(frozen=True)
class Project(Operation):
    """outs = x times the transposed matrices of these slots, which share what is made of x.

    With a `norm` x is normed first, and `normed` is room for that. `added` is added to the only
    result, which may be the same value.
    """

    READS, WRITES = "x added", "outs normed"
    x: int
    outs: tuple[int, ...]
    slots: tuple[str, ...]
    norm: Normalize | None = None
    normed: int | None = None
    added: int | None = None


@dataclass(frozen=True)
class AddBias(Operation):
    """x += the vector of that name."""

    x: int
    name: str


@dataclass(frozen=True)
class Rotate(Operation):
    """Rotary embedding of the heads of x."""

    x: int
    heads: int
    rope: Rope


@dataclass(frozen=True)
class Clamp(Operation):
    """Values of x below `least` become it, and those above `most` that."""

    x: int
    least: float
    most: float


@dataclass(frozen=True)
class CutOff(Operation):
    """x = relu(x - cutoff), where the cutoff is `deviations` above the mean of a row."""

    x: int
    deviations: float


@dataclass(frozen=True)
class WriteCache(Operation):
    """Write new keys, and values unless they are a part of the keys, to the layer's cache.

    The keys of an indexer have a cache of their own.
    """

    READS, WRITES = "keys values_", ""
    keys: int
    values_: int | None
    kv_heads: int
    is_index: bool = False


@dataclass(frozen=True)
class ChooseKeys(Operation):
    """choice = the positions of the best keys, in ascending order, for the indexer's queries x.

    `weights` are those of its heads. In sequences that have no more tokens than a choice has
    positions, nothing is chosen.
    """

    READS, WRITES = "x weights", "choice"
    x: int
    weights: int
    choice: int
    heads: int


@dataclass(frozen=True)
class Attend(Operation):
    """out = the attention of the queries x to the cached keys of their sequences.

    With a `choice`, to those in sequences that have more tokens than it has positions.
    """

    READS, WRITES = "x choice", "out"
    x: int
    out: int
    attention: Attention
    choice: int | None = None


@dataclass(frozen=True)
class AttendBothWays(Operation):
    """out = the attention of the queries x to the keys of all tokens of their sequences."""

    READS, WRITES = "x keys values_", "out"
    x: int
    keys: int
    values_: int
    out: int
    attention: EncoderAttention


@dataclass(frozen=True)
class WriteImage(Operation):
    """Write the keys and values of an image, one row for each of its features, to a cache."""

    READS, WRITES = "keys values_", ""
    keys: int
    values_: int
    kv_heads: int


@dataclass(frozen=True)
class AttendToImages(Operation):
    """out = the attention of the queries x to the images that their sequences have there."""

    WRITES = "out"
    x: int
    out: int
    attention: CrossAttention


@dataclass(frozen=True)
class Activate(Operation):
    """x = activation(x) * up, or activation(x) without `up`.

    Some functions clamp both, and change `up`.
    """

    READS, WRITES = "x up", "x up"
    x: int
    up: int | None
    activation: str
    clamp: float = 0.0


@dataclass(frozen=True)
class Add(Operation):
    """x += y."""

    READS = "x y"
    x: int
    y: int


@dataclass(frozen=True)
class Scale(Operation):
    """x *= factor, or the learned scalar of that name, or the tanh of one that `is_gate`."""

    x: int
    factor: float | str
    is_gate: bool = False


@dataclass(frozen=True)
class Embed(Operation):
    """out = the embeddings of the tokens."""

    READS, WRITES = "", "out"
    out: int
    slot: str


@dataclass(frozen=True)
class Split(Operation):
    """outs = the parts of each of `runs` runs of x, one after another; one part is a copy."""

    WRITES = "outs"
    x: int
    outs: tuple[int, ...]
    runs: int = 1


@dataclass(frozen=True)
class Join(Operation):
    """out = `runs` runs, each of one of x and then one of y, which may have one for all.

    Without y these are the constants `tail`, of all runs.
    """

    READS, WRITES = "x y", "out"
    x: int
    y: int | None
    out: int
    runs: int = 1
    tail: tuple[float, ...] = ()


@dataclass(frozen=True)
class Take(Operation):
    """out = values of x, one after another from that with the index `first` on."""

    WRITES = "out"
    x: int
    out: int
    first: int


@dataclass(frozen=True)
class AddToRuns(Operation):
    """x += y in each run of x that is as wide as y, but for the first run."""

    READS = "x y"
    x: int
    y: int


@dataclass(frozen=True)
class AddWeighed(Operation):
    """Each of `runs` runs of x += the sum of the runs of y, as wide as those, by their weights.

    `weights` has those of all runs of y for the first run of x, then for the next; `more` is added
    to each.
    """

    READS = "x y weights"
    x: int
    y: int
    weights: int
    runs: int
    more: float = 0.0


@dataclass(frozen=True)
class Multiply(Operation):
    """x *= y; if x is wider, each value of y multiplies as many adjacent ones of x."""

    READS = "x y"
    x: int
    y: int


@dataclass(frozen=True)
class ScaleEach(Operation):
    """x *= the vector of that name, each value of which multiplies `size` adjacent ones of x."""

    x: int
    name: str
    size: int = 1


@dataclass(frozen=True)
class ScaleToLength(Operation):
    """Each run of `size` values of x gets a length."""

    x: int
    size: int
    length: float


@dataclass(frozen=True)
class ProjectSmall(Operation):
    """out = x times the transposed small matrix of that name, which is never quantized.

    Each of several heads of x has a matrix of its own. The matrices may be stored transposed.
    """

    WRITES = "out"
    x: int
    out: int
    name: str
    heads: int = 1
    is_transposed: bool = False


@dataclass(frozen=True)
class Xielu(Operation):
    """x = xIELU(x), by four learned numbers in this slot, or by these values."""

    x: int
    slot: str
    values_: tuple[float, ...] = ()


@dataclass(frozen=True)
class Convolve(Operation):
    """Values are convolved over their sequences, each channel by itself.

    The weights of their channels, one value after another, are those from `first_row` on of the
    vector, and their earlier inputs those from `first_channel` on of the state.
    """

    READS, WRITES = "values_", "values_"
    values_: tuple[int, ...]
    slot: str
    taps: int
    first_row: int = 0
    first_channel: int = 0
    bias: bool = False
    silu: bool = False


@dataclass(frozen=True)
class DeltaRule(Operation):
    """The keys and values of each token update a state, and out = what its queries read of it.

    The logarithms of decays are those of heads, or of keys if there are as many.
    """

    READS, WRITES = "queries keys values_ log_decays strengths", "out"
    queries: int
    keys: int
    values_: int
    log_decays: int
    strengths: int
    out: int
    heads: int
    key_heads: int
    tiled: bool = False


@dataclass(frozen=True)
class StateSpace(Operation):
    """The inputs x of each token, which lasts `times`, update a state that `outputs` read.

    A head has `decays` decays: one, or one for each value of a row of its state.
    """

    READS, WRITES = "x inputs outputs times", "out"
    x: int
    inputs: int
    outputs: int
    times: int
    out: int
    heads: int
    groups: int
    decays: int = 1


@dataclass(frozen=True)
class Compute(Operation):
    """out = what a module makes of x: `mixer` or `ffn`."""

    WRITES = "out"
    x: int
    out: int
    module: str


@dataclass(frozen=True)
class SumOfRanks(Operation):
    """Each of these values is the sum of those of all processes."""

    READS, WRITES = "values_", "values_"
    values_: tuple[int, ...]


@dataclass(frozen=True)
class Route(Operation):
    """choice = the experts of x by their numbers, as int32, and then their weights.

    All others are room; there is a `normed` if the router norms x.
    """

    WRITES = "choice scores ranks normed"
    x: int
    choice: int
    scores: int
    ranks: int
    normed: int | None
    router: Router


@dataclass(frozen=True)
class Mix(Operation):
    """out = the weighted sum of what the chosen experts make of x; all others are room."""

    READS, WRITES = "x choice", "out rows hidden order"
    x: int
    choice: int
    out: int
    rows: int
    hidden: int
    order: int
    moe: Moe

    @property
    def slots(self) -> tuple[str, ...]:
        """The matrices of each expert, in the order of `parts`."""
        experts = range(self.moe.router.experts)
        return tuple(f"ffn.experts.{n}.{part}" for n in experts for part in self.parts)

    @property
    def parts(self) -> tuple[str, ...]:
        return ("gate", "up", "down") if self.moe.expert.gated else ("up", "down")


@dataclass(frozen=True)
class Weigh(Operation):
    """x *= the sigmoid of y times the vector of a slot, for which `gate` is room."""

    READS, WRITES = "x y", "x gate"
    x: int
    y: int
    gate: int
    slot: str


class Graph:
    """A list of operations in the making, and the widths of their values."""

    def __init__(
        self, stream_width: int, native: Collection[str] = (), *, has_ranks: bool = False
    ) -> None:
        """The native library computes the operations of the `native` modules of a layer.

        With `has_ranks` results of modules are sums over several processes.
        """
        self.widths, self.native, self._has_ranks = [stream_width], native, has_ranks
        self.operations: list[Operation] = []
        #: Values that no operation makes, because each step has them, and what they are.
        self.given: dict[int, Given] = {}
        #: Values that are in float32 even where activations are not.
        self.wide: set[int] = set()

    def given_value(self, width: int, what: Given) -> int:
        """A new value that is given with the tokens."""
        value = self.value(width)
        self.given[value] = what
        return value

    def value(self, width: int, *, wide: bool = False) -> int:
        """A new value; a `wide` one is in float32 even where activations are not."""
        value = len(self.widths)
        self.widths.append(width)
        if wide:
            self.wide.add(value)
        return value

    def add(self, *operations: Operation) -> None:
        self.operations += operations

    def sum_ranks(self, *values: int) -> None:
        """Add up the values that several processes have each a part of, if there are several."""
        if self._has_ranks:
            self.add(SumOfRanks(values))

    def split(
        self, x: int, widths: Sequence[int], runs: int = 1, *, wide: bool = False
    ) -> tuple[int, ...]:
        """New values: the parts of each of `runs` runs of x, by the widths of a run's parts."""
        parts = tuple(self.value(runs * width, wide=wide) for width in widths)
        self.add(Split(x, parts, runs))
        return parts

    def small_product(self, x: int, slot: str, width: int) -> int:
        """A new value in float32: x times a small matrix."""
        out = self.value(width, wide=True)
        self.add(ProjectSmall(x, out, f"{slot}.weight"))
        return out

    def joined(self, x: int, y: int, runs: int = 1) -> int:
        """A new value: `runs` runs, each of one of x and then one of y."""
        out = self.value(self.widths[x] + self.widths[y])
        self.add(Join(x, y, out, runs))
        return out

    def norm(self, x: int, out: int, slot: str, norm: Norm, size: int = 0) -> Normalize:
        """out = the norm of x, or of each run of `size` values of it."""
        return Normalize(x, out, slot, norm, size or self.widths[x])

    def normed(self, x: int, slot: str, norm: Norm) -> int:
        """A new value: the norm of x."""
        out = self.value(self.widths[x])
        self.add(self.norm(x, out, slot, norm))
        return out

    def projected(
        self, x: int, widths: dict[str, int], *, bias: bool = False, wide: Collection[str] = ()
    ) -> tuple[int, ...]:
        """New values: the products of x with the matrices of some slots, by their widths."""
        outs = tuple(self.value(width, wide=slot in wide) for slot, width in widths.items())
        self.add(Project(x, outs, tuple(widths)))
        if bias:
            self.add(*map(AddBias, outs, (f"{slot}.bias" for slot in widths)))
        return outs

    def sections(self) -> list[list[Operation]]:
        """The operations, cut wherever only the stream is alive."""
        ends = [0, *quiet_ends(self.operations)]
        return [self.operations[first:end] for first, end in pairwise(ends)]


def module_of(slot: str) -> str:
    """The module of a layer that a weight belongs to: `mixer`, `ffn` or `input`."""
    name = slot.partition(".")[0]
    return "mixer" if name in ("laurel", "cross") else name


def modules_of(operations: Sequence[Operation]) -> set[str]:
    """The modules of a layer that some operations compute, or are a part of."""
    modules = {module_of(x.module) for x in operations if isinstance(x, Compute)}
    matrices = (each.slots for each in operations if isinstance(each, Project | Mix))
    return modules | {module_of(slot) for slots in matrices for slot in slots}


def last_uses(operations: Sequence[Operation]) -> dict[int, int]:
    """The index of the last operation that reads or writes each value."""
    return {value: index for index, each in enumerate(operations) for value in each.values}


def quiet_ends(operations: Sequence[Operation]) -> Iterator[int]:
    """The numbers of operations after which only the stream is alive."""
    uses, alive_until = last_uses(operations), -1
    for index, each in enumerate(operations):
        alive_until = max(alive_until, *(uses[x] for x in each.values if x != STREAM), -1)
        if alive_until <= index:
            yield index + 1

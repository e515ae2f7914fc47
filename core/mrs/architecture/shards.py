"""What each of several processes computes of every layer (tensor parallelism).

The spec of a rank is that of the model with fewer heads and narrower MLPs: each module says what
can be shared out of it, its `shard_axes`. Where the dimension of a weight shrinks, the ranks have
consecutive parts of it, in their order: of a matrix whose output is shared its rows, of one whose
input is shared its columns. The outputs of the latter are parts of a sum. Embedding and head are
shared by rows of the vocabulary, and all other weights are in each rank. A bias that is added to a
sum belongs to rank 0, as does the vision tower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise
from math import gcd, lcm
from typing import NamedTuple

from mrs.architecture.cuts import Cut, cut_parameter, layer_cuts, slot_of
from mrs.architecture.description import Description
from mrs.architecture.model_spec import ModelSpec
from mrs.architecture.shardable import require_shardable
from mrs.errors import UsageError
from mrs.layers.attention.spec import SharedAttention
from mrs.layers.layer import Layer
from mrs.layers.mixer import FeedForward, Mixer, ShardAxis
from mrs.layers.slots import Slot
from mrs.weights.binding import Parameter

FLAG = "--tensor-parallel-size"
#: Shards are multiples of this many rows or columns if possible: kernels work on groups of them.
_WISHED_VALUES = 32
PIPELINE = "split the layers over processes instead: --workers"
#: The columns of a block of each weight whose input is shared, by its slot.
_Blocks = tuple[tuple[str, int], ...]


class TensorShard(NamedTuple):
    """The shard of a rank: a narrower model, and its rows of each table of tokens, by parameter."""

    description: Description
    rows: Mapping[str, range]


class _Axis(NamedTuple):
    """What the ranks share out: `total` heads or columns, in groups of `unit`."""

    what: str
    total: int
    unit: int = 1
    columns: int = 1

    @property
    def groups(self) -> int:
        return -(-self.total // self.unit)

    def split(self, ranks: int) -> list[range]:
        """Consecutive parts, as equal as groups allow, the larger ones first."""
        each, more = divmod(self.groups, ranks)
        counts = [each + (rank < more) for rank in range(ranks)]
        ends = accumulate((count * self.unit for count in counts), initial=0)
        return [range(start, min(end, self.total)) for start, end in pairwise(ends)]

    def wishing(self, ranks: int) -> _Axis:
        """The same axis in larger groups, if that leaves one for each rank."""
        some = _WISHED_VALUES // gcd(_WISHED_VALUES, self.columns)
        wished = self._replace(unit=lcm(self.unit, some))
        return wished if wished.groups >= ranks else self


def shard_model(
    description: Description, ranks: int, block_columns: Callable[[Parameter], int]
) -> list[TensorShard]:
    """The shard of each rank. Columns are cut at multiples of `block_columns` of the parameter.

    Raises Unsupported for layers and weights that cannot be shared, and UsageError if there are
    fewer heads or blocks than ranks.
    """
    spec = description.spec
    require_shardable(spec, FLAG, PIPELINE)
    blocks = _blocks_by_layer(description, block_columns)
    hidden_size = spec.hidden_size
    tables = {
        each.name: _Axis("vocabulary row", each.shape[0])
        for each in description.parameters
        if each.layer is None and _is_of_vocabulary(each)
    }
    _require_enough(spec, blocks, tables, ranks)

    @cache
    def narrow(layer: Layer, layer_blocks: _Blocks) -> tuple[list[Layer], list[dict[str, Cut]]]:
        layers = list(_narrow(layer, dict(layer_blocks), hidden_size, ranks))
        return layers, layer_cuts(layer, layers, hidden_size)

    layers = [narrow(*each) for each in zip(spec.layers, blocks, strict=True)]
    rows = {name: axis.wishing(ranks).split(ranks) for name, axis in tables.items()}
    shards = []
    for rank in range(ranks):
        rank_rows = {name: each[rank] for name, each in rows.items()}
        rank_parameters = [
            _of_no_layer(each, rank_rows, rank)
            if each.layer is None
            else cut_parameter(each, layers[each.layer][1][rank][slot_of(each)])
            for each in description.parameters
        ]
        parameters = tuple(each for each in rank_parameters if each is not None)
        rank_spec = replace(
            spec,
            layers=tuple(each[rank] for each, _ in layers),
            vision=None if rank else spec.vision,
        )
        shards.append(TensorShard(Description(rank_spec, parameters), rank_rows))
    return shards


def _is_of_vocabulary(parameter: Parameter) -> bool:
    """Whether its rows are those of tokens."""
    return parameter.role in ("embedding", "head") or parameter.name == "head.bias"


@cache
def _shared_columns(
    module: Mixer | FeedForward, hidden_size: int
) -> tuple[tuple[ShardAxis, Mapping[str, int]], ...]:
    """For each axis the weights whose columns are shared along it, by their slots.

    Each head or column of the axis has so many columns of such a weight: those that the module has
    left when it is cut to one. Raises TypeError if there are none.
    """
    axes = module.shard_axes
    slots = {each.name: each for each in module.slots(hidden_size)}
    shared: list[tuple[ShardAxis, Mapping[str, int]]] = []
    for axis in axes:
        # A single head or column is in no need of being cut.
        ranges = [range(1 if each is axis else each.total) for each in axes]
        part = {each.name: each for each in module.with_shard(ranges).slots(hidden_size)}
        columns = {
            name: gcd(*cut)
            for name, slot in slots.items()
            if (cut := _cut_columns(slot, part[name], axis.total))
        }
        if axis.total > 1 and not columns:
            raise TypeError(
                f"`with_shard` of {type(module).__name__} cuts the columns of no weight"
            )
        shared.append((axis, columns))
    return tuple(shared)


def _cut_columns(slot: Slot, part: Slot, total: int) -> list[int]:
    """Of each section of its columns that a part has less of, what each one of `total` has."""
    sizes, part_sizes = (each.column_sections or each.shape[1:][-1:] for each in (slot, part))
    return [n // total for n, m in zip(sizes, part_sizes, strict=True) if n != m]


def _layer_columns(
    layer: Layer, hidden_size: int
) -> tuple[tuple[ShardAxis, Mapping[str, int]], ...]:
    modules = (layer.mixer, layer.feed_forward)
    return tuple(each for module in modules for each in _shared_columns(module, hidden_size))


def _blocks_by_layer(
    description: Description, block_columns: Callable[[Parameter], int]
) -> list[_Blocks]:
    """For each layer the columns of a block of each weight whose columns are shared.

    Layers of which one has the keys and values of the other are cut in the same way.
    """
    layers = description.spec.layers
    hidden_size = description.spec.hidden_size
    layer_blocks: list[dict[str, int]] = [
        {slot: 1 for _, columns in _layer_columns(layer, hidden_size) for slot in columns}
        for layer in layers
    ]
    for parameter in description.parameters:
        if parameter.layer is None:
            continue
        slot = slot_of(parameter).removesuffix(".weight")
        blocks = layer_blocks[parameter.layer]
        if slot in blocks:
            blocks[slot] = lcm(blocks[slot], block_columns(parameter))
    owners = [
        layer.mixer.layer if isinstance(layer.mixer, SharedAttention) else index
        for index, layer in enumerate(layers)
    ]
    of_mixers = [
        [slot for _, columns in _shared_columns(layer.mixer, hidden_size) for slot in columns]
        for layer in layers
    ]
    for slots, blocks, owner in zip(of_mixers, layer_blocks, owners, strict=True):
        for slot in slots:
            layer_blocks[owner][slot] = lcm(layer_blocks[owner][slot], blocks[slot])
    for slots, blocks, owner in zip(of_mixers, layer_blocks, owners, strict=True):
        blocks.update({slot: layer_blocks[owner][slot] for slot in slots})
    return [tuple(each.items()) for each in layer_blocks]


def _axes(layer: Layer, blocks: Mapping[str, int], hidden_size: int) -> Iterator[_Axis]:
    """What the ranks share of a layer."""
    for axis, columns in _layer_columns(layer, hidden_size):
        unit = lcm(*(blocks[slot] // gcd(blocks[slot], n) for slot, n in columns.items()))
        yield _Axis(axis.what, axis.total, unit, gcd(*columns.values()) or 1)


def _require_enough(
    spec: ModelSpec, blocks: Sequence[_Blocks], tables: Mapping[str, _Axis], ranks: int
) -> None:
    kinds = set(zip(spec.layers, blocks, strict=True))
    axes = [
        axis
        for layer, layer_blocks in kinds
        for axis in _axes(layer, dict(layer_blocks), spec.hidden_size)
    ]
    least = min((*axes, *tables.values()), key=_groups)
    if least.groups >= ranks:
        return
    plural = "" if least.total == 1 else "s"
    groups = f" in groups of {least.unit}" if least.unit > 1 else ""
    sizes = f"use {FLAG} 2" + (f" to {least.groups}" if least.groups > 2 else "")
    raise UsageError(
        f"{ranks} processes cannot share {least.total} {least.what}{plural}{groups}",
        where=FLAG,
        hint=sizes if least.groups > 1 else PIPELINE,
    )


def _groups(axis: _Axis) -> int:
    return axis.groups


def _narrow(
    layer: Layer, blocks: Mapping[str, int], hidden_size: int, ranks: int
) -> Iterator[Layer]:
    """The layer of each rank."""
    splits = [axis.wishing(ranks).split(ranks) for axis in _axes(layer, blocks, hidden_size)]
    of_mixer = len(layer.mixer.shard_axes)
    for rank in range(ranks):
        ranges = [split[rank] for split in splits]
        yield replace(
            layer,
            mixer=layer.mixer.with_shard(ranges[:of_mixer]),
            feed_forward=layer.feed_forward.with_shard(ranges[of_mixer:]),
        )


def _of_no_layer(parameter: Parameter, rows: Mapping[str, range], rank: int) -> Parameter | None:
    """The shard of a rank of a weight outside of the layers; None if it has none."""
    if rank and parameter.name.startswith("vision."):
        return None
    rank_rows = rows.get(parameter.name)
    if rank_rows is None:
        return parameter
    return cut_parameter(parameter, Cut((len(rank_rows), *parameter.shape[1:]), [rank_rows]))

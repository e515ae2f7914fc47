"""What each of several processes computes of every layer (tensor parallelism).

The spec of a rank is that of the model with fewer heads and narrower MLPs. Where the dimension of a
weight shrinks, the ranks have consecutive parts of it, in their order: of a matrix whose output is
shared its rows, of one whose input is shared its columns. The outputs of the latter are parts of a
sum. Embedding and head are shared by rows of the vocabulary, and all other weights are in each
rank. A bias that is added to a sum belongs to rank 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise
from math import gcd, lcm
from typing import NamedTuple

from mrs.architecture.binding import Parameter, Piece
from mrs.architecture.describe import Description
from mrs.architecture.layers import Layer
from mrs.architecture.mixers.attention_spec import Attention
from mrs.architecture.mixers.mixer import FeedForward
from mrs.architecture.mixers.mlp_spec import Mlp
from mrs.architecture.mixers.moe_spec import Moe
from mrs.architecture.model_spec import ModelSpec
from mrs.errors import Unsupported, UsageError

FLAG = "--tensor-parallel-size"
#: Shares are multiples of this many rows or columns if possible: kernels work on groups of them.
_WISHED_VALUES = 32
_PIPELINE = "split the layers over processes instead: --workers"
#: Weights whose input is shared, so that their outputs are parts of a sum, and their biases.
_SUMMED_WEIGHTS = ("mixer.o.weight", ".down.weight")
_SUMMED_BIASES = ("mixer.o.bias", ".down.bias")
_Shape = tuple[int, ...]
#: The columns of a block of each weight whose input is shared, by its slot.
_Blocks = tuple[tuple[str, int], ...]


class Share(NamedTuple):
    """The part of a rank: a narrower model, and its rows of the vocabulary."""

    description: Description
    vocabulary: range


class _Axis(NamedTuple):
    """What the ranks share out: `total` heads or columns, in groups of `unit`."""

    what: str
    total: int
    unit: int = 1

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
        """The same in larger groups, if these are enough."""
        wished = self._replace(unit=lcm(self.unit, _WISHED_VALUES))
        return wished if wished.groups >= ranks else self


def share_model(
    description: Description, ranks: int, block_columns: Callable[[Parameter], int]
) -> list[Share]:
    """The share of each rank. Columns are cut at multiples of `block_columns` of the parameter.

    Raises Unsupported for layers and weights that cannot be shared, and UsageError if there are
    fewer heads or blocks than ranks.
    """
    spec = description.spec
    _require_shareable(spec)
    blocks = _blocks_by_layer(description, block_columns)
    _require_enough(spec, blocks, ranks)

    @cache
    def narrow(layer: Layer, own: _Blocks) -> tuple[Layer, ...]:
        return tuple(_narrow(layer, dict(own), ranks))

    layers = [narrow(layer, own) for layer, own in zip(spec.layers, blocks, strict=True)]
    vocabulary = _vocabulary_axis(spec).wishing(ranks).split(ranks)
    shapes = [_layer_shapes(each, spec.hidden_size) for each in layers]
    shares = []
    for rank in range(ranks):
        own_spec = replace(spec, layers=tuple(each[rank] for each in layers))
        own = [
            _of_vocabulary(each, vocabulary[rank])
            if each.layer is None
            else _of_layer(each, shapes[each.layer], rank)
            for each in description.parameters
        ]
        parameters = tuple(each for each in own if each is not None)
        shares.append(Share(Description(own_spec, parameters), vocabulary[rank]))
    return shares


def _require_shareable(spec: ModelSpec) -> None:
    if spec.vision is not None:
        raise _refused("a vision tower")
    if spec.extra_tokens:
        raise _refused("an embedding with more rows than the head")
    for layer in spec.layers:
        mixer, feed_forward = layer.mixer, layer.feed_forward
        if layer.gated_input or layer.laurel or layer.altup:
            what = "layers with inputs or streams of their own"
            raise Unsupported(f"{what} cannot be in several processes", hint=f"leave out {FLAG}")
        if isinstance(feed_forward, Mlp) and feed_forward.cutoff is not None:
            raise _refused("an MLP with a sparse gate")
        if not isinstance(mixer, Attention):
            raise _refused(_name(mixer))
        if mixer.qk_norm_whole:
            raise _refused("a norm over the queries of all heads")
        if not isinstance(feed_forward, Mlp | Moe):
            raise _refused(_name(feed_forward))
        if isinstance(feed_forward, Moe) and feed_forward.latent is not None:
            raise _refused("a mixture of experts with latent vectors")


def _refused(what: str) -> Unsupported:
    return Unsupported(f"{what} cannot be shared by processes yet", where=FLAG, hint=_PIPELINE)


def _name(module: object) -> str:
    """`LatentAttention` as words."""
    return re.sub("(?<!^)(?=[A-Z])", " ", type(module).__name__).lower()


def _blocks_by_layer(
    description: Description, block_columns: Callable[[Parameter], int]
) -> list[_Blocks]:
    """For each layer the columns of a block of its `mixer.o` and of each `down`."""
    found: list[dict[str, int]] = [{} for _ in description.spec.layers]
    for parameter in description.parameters:
        if parameter.layer is None or not parameter.name.endswith(_SUMMED_WEIGHTS):
            continue
        for piece in parameter.pieces:
            if piece.packed is not None:
                raise _refused(f"weights of {piece.packed.scheme.name}")
        slot, blocks = _slot(parameter), found[parameter.layer]
        blocks[slot] = lcm(blocks.get(slot, 1), block_columns(parameter))
    return [tuple(each.items()) for each in found]


def _slot(parameter: Parameter) -> str:
    """`layers.3.ffn.experts.7.up.weight` is `ffn.experts.{expert}.up.weight`."""
    name = parameter.name.split(".", 2)[2]
    return re.sub(r"experts\.\d+\.", "experts.{expert}.", name)


def _axes(layer: Layer, blocks: Mapping[str, int]) -> Iterator[_Axis]:
    """What the ranks share of a layer."""
    assert isinstance(layer.mixer, Attention)
    yield _head_axis(layer.mixer, blocks)
    for slot, mlp in _mlps(layer.feed_forward):
        yield _mlp_axis(mlp, blocks[f"{slot}.down.weight"])


def _vocabulary_axis(spec: ModelSpec) -> _Axis:
    return _Axis("vocabulary row", spec.vocab_size)


def _head_axis(mixer: Attention, blocks: Mapping[str, int]) -> _Axis:
    """Heads of keys, each with its heads of queries, whose outputs are columns of `mixer.o`."""
    block, columns = blocks["mixer.o.weight"], mixer.heads // mixer.kv_heads * mixer.head_dim
    return _Axis("KV head", mixer.kv_heads, block // gcd(block, columns))


def _mlp_axis(mlp: Mlp, block: int) -> _Axis:
    return _Axis("MLP column", mlp.intermediate, block)


def _mlps(feed_forward: FeedForward) -> Iterator[tuple[str, Mlp]]:
    if isinstance(feed_forward, Mlp):
        yield "ffn", feed_forward
    elif isinstance(feed_forward, Moe):
        yield "ffn.experts.{expert}", feed_forward.expert
        if feed_forward.shared is not None:
            yield "ffn.shared", feed_forward.shared


def _require_enough(spec: ModelSpec, blocks: Sequence[_Blocks], ranks: int) -> None:
    kinds = set(zip(spec.layers, blocks, strict=True))
    axes = [axis for layer, own in kinds for axis in _axes(layer, dict(own))]
    least = min((*axes, _vocabulary_axis(spec)), key=_groups)
    if least.groups >= ranks:
        return
    plural = "" if least.total == 1 else "s"
    groups = f" in groups of {least.unit}" if least.unit > 1 else ""
    sizes = f"use {FLAG} 2" + (f" to {least.groups}" if least.groups > 2 else "")
    raise UsageError(
        f"{ranks} processes cannot share {least.total} {least.what}{plural}{groups}",
        where=FLAG,
        hint=sizes if least.groups > 1 else _PIPELINE,
    )


def _groups(axis: _Axis) -> int:
    return axis.groups


def _narrow(layer: Layer, blocks: Mapping[str, int], ranks: int) -> Iterator[Layer]:
    """The layer of each rank."""
    mixer, feed_forward = layer.mixer, layer.feed_forward
    assert isinstance(mixer, Attention)
    heads = _head_axis(mixer, blocks).split(ranks)
    mlps = {
        slot: _mlp_axis(mlp, blocks[f"{slot}.down.weight"]).wishing(ranks).split(ranks)
        for slot, mlp in _mlps(feed_forward)
    }
    for rank in range(ranks):
        own = len(heads[rank])
        narrow = {
            slot: replace(mlp, intermediate=len(mlps[slot][rank]))
            for slot, mlp in _mlps(feed_forward)
        }
        yield replace(
            layer,
            mixer=replace(mixer, heads=mixer.heads // mixer.kv_heads * own, kv_heads=own),
            feed_forward=_with_mlps(feed_forward, narrow),
        )


def _with_mlps(feed_forward: FeedForward, mlps: Mapping[str, Mlp]) -> FeedForward:
    if isinstance(feed_forward, Moe):
        expert, shared = mlps["ffn.experts.{expert}"], mlps.get("ffn.shared")
        return replace(feed_forward, expert=expert, shared=shared)
    return mlps["ffn"]


def _layer_shapes(layers: Sequence[Layer], hidden_size: int) -> dict[str, list[_Shape]]:
    """The shapes of a layer's weights in each rank, by slot."""
    found: dict[str, list[_Shape]] = {}
    for layer in layers:
        for slot in layer.slots(hidden_size):
            found.setdefault(slot.name + slot.suffix, []).append(slot.shape)
            if slot.bias:
                found.setdefault(f"{slot.name}.bias", []).append(slot.shape[:1])
    return found


def _of_vocabulary(parameter: Parameter, rows: range) -> Parameter:
    is_shared = parameter.role in ("embedding", "head") or parameter.name == "head.bias"
    return _with_rows(parameter, rows) if is_shared else parameter


def _of_layer(
    parameter: Parameter, shapes: Mapping[str, Sequence[_Shape]], rank: int
) -> Parameter | None:
    """The part of a rank; None if it has none."""
    slot = _slot(parameter)
    if rank and slot.endswith(_SUMMED_BIASES):
        return None
    for axis, whole in enumerate(parameter.shape):
        sizes = [shape[axis] for shape in shapes[slot]]
        if sizes[rank] == whole:
            continue
        start = sum(sizes[:rank])
        own = range(start, start + sizes[rank])
        return _with_columns(parameter, own) if axis else _with_rows(parameter, own)
    return parameter


def _with_rows(parameter: Parameter, rows: range) -> Parameter:
    pieces, start = [], 0
    for piece in parameter.pieces:
        own = range(parameter.rows) if piece.rows is None else piece.rows
        inside = own[max(rows.start - start, 0) : max(rows.stop - start, 0)]
        if inside:
            pieces.append(piece._replace(rows=inside))
        start += len(own)
    shape = (len(rows), *parameter.shape[1:])
    return parameter._replace(shape=shape, pieces=tuple(pieces))


def _with_columns(parameter: Parameter, columns: range) -> Parameter:
    def some(piece: Piece) -> Piece:
        rows = range(parameter.rows) if piece.rows is None else piece.rows
        return piece._replace(rows=rows, columns=columns)

    shape = (parameter.shape[0], len(columns))
    return parameter._replace(shape=shape, pieces=tuple(map(some, parameter.pieces)))

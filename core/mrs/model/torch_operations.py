"""Operations as torch computes them, one by one: on every device, and the truth for other paths."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from mrs.cache.cross_attention_kv import ImageKeys
from mrs.graph.operations import (
    STREAM,
    Activate,
    Add,
    AddBias,
    AddToRuns,
    AddWeighed,
    Attend,
    AttendBothWays,
    AttendToImages,
    ChooseKeys,
    ChosenKeys,
    Clamp,
    Compute,
    Convolve,
    CutOff,
    DeltaRule,
    Given,
    Graph,
    Join,
    Mix,
    Multiply,
    Normalize,
    Operation,
    Project,
    ProjectSmall,
    Rotate,
    Route,
    Scale,
    ScaleEach,
    ScaleToLength,
    Split,
    StateSpace,
    SumOfRanks,
    Take,
    Weigh,
    WriteCache,
    WriteImage,
    Xielu,
    last_uses,
)
from mrs.kernels.delta_rule import l2_normalize
from mrs.kernels.dense_products import linear, multiply_heads
from mrs.kernels.nonlinearities import activated, cut_off, cut_off_parts, gated
from mrs.kernels.rotate import rotate
from mrs.kernels.xielu import XieluParameters, xielu
from mrs.layers.rope.module import RopeTable
from mrs.model.batch import ForwardBatch
from mrs.model.given_values import given_value, room_for_choice
from mrs.model.model_weights import ModelWeights
from mrs.model.torch_states import Convolution, DeltaRuleStep, StateSpaceStep, StateStep

#: The values of a step that are alive, by their numbers: (N, width), but a choice of experts is
#: their weights and their indices, (N, top_k) both, and one of keys may be None: all.
Values = dict[int, Any]
#: A module of a layer that has no operations, of x (N, hidden), the batch, and the layer's cache of
#: each sequence.
Module = Callable[[Tensor, ForwardBatch, Any], Tensor]


class Run(Protocol):
    """Computes one operation: it changes `values`, and what the layer has cached."""

    def __call__(self, values: Values, batch: ForwardBatch, cache: Any) -> None: ...


class TorchOperations:
    """Some operations of a graph with their weights. A value is freed after its last use."""

    def __init__(
        self,
        operations: Sequence[Operation],
        graph: Graph,
        weights: ModelWeights,
        modules: Mapping[str, Module] | None = None,
        mixer: Any = None,
        feed_forward: Any = None,
        rope: RopeTable | None = None,
        *,
        result: int = STREAM,
        layer: int = 0,
        owns_stream: bool = False,
    ) -> None:
        """They give the value `result`.

        `mixer` has the caches, `feed_forward` the experts, and `layer` is the index in the batch's
        `layer_inputs`. Their input is overwritten if they `own` the `stream`.
        """
        self._result, self._weights, self._modules = result, weights, modules or {}
        self._mixer, self._feed_forward, self._rope = mixer, feed_forward, rope
        self._widths, self._wide = graph.widths, graph.wide
        self._layer, self._owns_stream = layer, owns_stream
        self._steps: list[tuple[Run, tuple[int, ...]]] = []
        self._given_kinds = graph.given
        uses, given, index = last_uses(operations), {*graph.given}, 0
        while index < len(operations):
            end, run = self._next(operations, index)
            span = operations[index:end]
            for value in given & {x for each in span for x in each.reads}:
                self._steps.append((self._given(value, graph.given[value]), ()))
                given.remove(value)
            values = {x for each in span for x in each.values} - {STREAM, result}
            self._steps.append((run, tuple(x for x in values if uses[x] < end)))
            index = end

    def __call__(self, x: Tensor, batch: Any = None, cache: Any = None) -> Tensor:
        """x (N, width of the stream) to the result (N, its width).

        Operations that mix no tokens need neither a batch nor a cache.
        """
        values = {STREAM: x}
        for run, done in self._steps:
            run(values, batch, cache)
            for value in done:
                values.pop(value, None)
        return values[self._result]

    def _given(self, value: int, kind: Given) -> Run:
        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            if isinstance(kind, ChosenKeys):
                chosen = batch.given.get(kind)
                values[value] = None if chosen is None else chosen.view(torch.int32)
                return
            like = next(iter(values.values()))
            given = given_value(batch, kind, self._layer).to(like.device, like.dtype)
            values[value] = given.view(like.shape[0], -1)

        return run

    def _next(self, operations: Sequence[Operation], index: int) -> tuple[int, Run]:
        """What computes the operations from `index` on, and the index after the last of them."""
        return index + 1, self._run_of(operations[index])

    def _run_of(self, operation: Operation) -> Run:
        match operation:
            case Normalize(x, out, slot, norm, size, is_shared):
                normed = self._weights.norm(slot, norm, size, is_shared=is_shared)
                if size == self._widths[x]:
                    return _applied(normed, x, out)
                return _applied(lambda y: normed(_in_runs(y, size)).flatten(1), x, out)
            case Project():
                return self._project(operation)
            case AddBias(x, name):
                bias = self._weights.optional_vector(name)  # some ranks have none
                return _applied(lambda y: y if bias is None else y.add_(bias.to(y.dtype)), x)
            case CutOff(x, deviations):
                ranks = self._weights.sum_of_ranks
                cut = cut_off if ranks is None else partial(cut_off_parts, sum_parts=ranks)
                return _applied(lambda y: cut(y, deviations), x)
            case Activate():
                return _activate(operation)
            case Xielu(x, slot, numbers):
                parameters = self._xielu(slot, numbers)
                return _applied(lambda y: xielu(y, parameters), x)
            case Scale(x, factor, is_gate):
                learned = self._weights.gate if is_gate else self._weights.vector
                by = learned(factor) if isinstance(factor, str) else factor
                may_change = self._may_change(x)
                return _applied(lambda y: y.mul_(by) if may_change else y * by, x)
            case Clamp(x, least, most):
                return _applied(lambda y: y.clamp_(least, most), x)
            case Multiply(x, y):
                return _multiply(x, y)
            case Split(x, outs, runs):
                sizes = [self._widths[out] // runs for out in outs]
                return _split(x, dict(zip(outs, sizes, strict=True)), runs, self._wide)
            case Take(x, out, first):
                return _take(x, out, slice(first, first + self._widths[out]))
            case Join():
                return self._join(operation)
            case Rotate(x, heads, rope):
                return self._rotate(x, heads, interleaved=rope.interleaved)
            case WriteCache():
                return self._write(operation)
            case Attend():
                return self._attend(operation)
            case AttendBothWays():
                return self._attend_both_ways(operation)
            case WriteImage():
                return _write_image(operation)
            case AttendToImages(x, out, cross):
                return self._attend_to_images(x, out, cross.heads)
            case ChooseKeys(x, weights, choice, heads):
                return self._choose(x, weights, self._given_kinds[choice], heads)
            case ProjectSmall():
                return self._project_small(operation)
            case ScaleEach(x, name, size):
                factors = self._weights.vector(name)
                if size == 1:
                    return _applied(lambda y: y.mul_(factors.to(y.dtype)), x)
                factors = factors[:, None]
                return _applied(lambda y: _in_runs(y, size).mul_(factors.to(y.dtype)).flatten(1), x)
            case ScaleToLength(x, size, length):
                return _applied(lambda y: l2_normalize(_in_runs(y, size), length).flatten(1), x)
            case Convolve():
                return self._of_states(
                    operation, Convolution(operation, self._widths, self._weights)
                )
            case DeltaRule():
                return self._of_states(operation, DeltaRuleStep(operation))
            case StateSpace():
                return self._of_states(operation, StateSpaceStep(operation, self._weights))
            case Add(x, y):
                return _add(x, y, in_place=self._may_change(x))
            case AddWeighed():
                return _add_weighed(operation)
            case AddToRuns(x, y):
                return _add_to_runs(x, y)
            case SumOfRanks(summed):
                return self._sum_of_ranks(summed)
            case Route(x, choice):
                return _applied(self._feed_forward.route, x, choice)
            case Mix(x, choice, out):
                return self._mix(x, choice, out)
            case Weigh():
                return self._weigh(operation)
            case Compute(x, out, name):
                return _compute(self._modules[name], x, out)
        raise TypeError(f"torch has no {type(operation).__name__}")

    def _may_change(self, value: int) -> bool:
        """Whether a value's memory is no one else's; the stream's is once it has been written."""
        may_change = value != STREAM or self._owns_stream
        self._owns_stream |= value == STREAM
        return may_change

    def _project(self, product: Project) -> Run:
        x, matrices = product.x, [self._weights.matrix(slot) for slot in product.slots]
        products = [(out, each.matmul) for out, each in zip(product.outs, matrices, strict=True)]
        wide = self._wide & {x, *product.outs}

        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            for out, multiply in products:
                values[out] = multiply(values[x])

        def run_wide(values: Values, batch: ForwardBatch, cache: Any) -> None:
            y = values[x].to(values[STREAM].dtype)
            for out, multiply in products:
                values[out] = multiply(y).float() if out in wide else multiply(y)

        return run_wide if wide else run

    def _of_states(self, operation: Operation, step: StateStep) -> Run:
        """Its inputs and the states of all sequences to what it makes or changes."""
        reads, writes, states = operation.reads, operation.writes, self._mixer.states

        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            outs = step([values[each] for each in reads], batch, states(cache))
            values.update(zip(writes, outs, strict=True))

        return run

    def _project_small(self, product: ProjectSmall) -> Run:
        """In float32, but for heads with matrices of their own."""
        matrices = self._weights.vector(product.name)
        if matrices.dim() == 2:
            return _applied(lambda x: linear(x, matrices), product.x, product.out)
        heads = matrices.transpose(1, 2) if product.is_transposed else matrices

        def multiplied(x: Tensor) -> Tensor:
            return multiply_heads(_heads(x, product.heads), heads).flatten(1)

        return _applied(multiplied, product.x, product.out)

    def _choose(self, x: int, weights: int, kind: Given, heads: int) -> Run:
        """Nothing is chosen in a step whose sequences have few tokens."""
        mixer = self._mixer
        assert isinstance(kind, ChosenKeys)

        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            if any(context > kind.top_k for _, context in batch.queries):
                q = _heads(values[x], heads)
                room = room_for_choice(batch, kind, q.device).view(torch.int32)
                mixer.choose(q, values[weights], batch, cache, room)

        return run

    def _sum_of_ranks(self, summed: Sequence[int]) -> Run:
        """All in one exchange."""
        sum_of_ranks = self._weights.sum_of_ranks
        assert sum_of_ranks is not None

        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            if len(summed) == 1:
                values[summed[0]] = sum_of_ranks(values[summed[0]])
                return
            total = sum_of_ranks(torch.cat([values[each] for each in summed], dim=1))
            parts = torch.split(total, [values[each].shape[1] for each in summed], dim=1)
            for each, part in zip(summed, parts, strict=True):
                values[each] = part.contiguous()

        return run

    def _mix(self, x: int, choice: int, out: int) -> Run:
        mix = self._feed_forward.mix

        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            values[out] = mix(values[x], *values[choice])

        return run

    def _weigh(self, operation: Weigh) -> Run:
        x, y = operation.x, operation.y
        weight = self._weights.vector(f"{operation.slot}.weight")[None]  # (1, hidden)

        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            gate = activated("sigmoid", linear(values[y], weight))
            values[x].mul_(gate.to(values[x].dtype))

        return run

    def _join(self, join: Join) -> Run:
        x, y, out, runs = join.x, join.y, join.out, join.runs
        if y is not None:
            size = (self._widths[out] - self._widths[x]) // runs
            return _join_rows(x, y, out) if runs == 1 else _join_runs(x, y, out, runs, size)
        device = self._weights.matrix("mixer.q").device
        tail = torch.tensor(join.tail, device=device).view(1, runs, -1)

        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            first = _heads(values[x], runs)
            last = tail.to(first.dtype).expand(len(first), -1, -1)
            values[out] = torch.cat((first, last), dim=-1).flatten(1)

        return run

    def _rotate(self, x: int, heads: int, *, interleaved: bool) -> Run:
        rope = self._rope
        assert rope is not None

        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            cos, sin = rope.angles(batch)
            rotated = rotate(_heads(values[x], heads), cos, sin, interleaved=interleaved)
            values[x] = rotated.flatten(1)

        return run

    def _write(self, written: WriteCache) -> Run:
        """Keys and values of several heads are (N, H, D) to the mixer."""
        mixer, heads = self._mixer, written.kv_heads
        keys, of_values = written.keys, written.values_

        def write(values: Values, batch: ForwardBatch, cache: Any) -> None:
            v = None if of_values is None else _heads(values[of_values], heads)
            mixer.write(_heads(values[keys], heads), v, batch, cache)

        def write_index(values: Values, batch: ForwardBatch, cache: Any) -> None:
            mixer.write_index(_heads(values[keys], heads), batch, cache)

        return write_index if written.is_index else write

    def _attend(self, operation: Attend) -> Run:
        mixer, heads = self._mixer, operation.attention.heads
        x, out, chosen = operation.x, operation.out, operation.reads[1:]

        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            choice = [values[each] for each in chosen]
            values[out] = mixer.attend(_heads(values[x], heads), batch, cache, *choice)

        return run

    def _attend_both_ways(self, operation: AttendBothWays) -> Run:
        mixer, attention, x, out = self._mixer, operation.attention, operation.x, operation.out

        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            k, v = (
                _heads(values[each], attention.kv_heads)
                for each in (operation.keys, operation.values_)
            )
            values[out] = mixer.attend_both_ways(_heads(values[x], attention.heads), k, v, batch)

        return run

    def _attend_to_images(self, x: int, out: int, heads: int) -> Run:
        """The spans of rows that attend stand for the cache."""
        mixer = self._mixer

        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            values[out] = mixer.attend_to_images(_heads(values[x], heads), cache)

        return run

    def _xielu(self, slot: str, numbers: Sequence[float]) -> XieluParameters:
        if not numbers:
            names = (f"{slot}.{name}" for name in XieluParameters._fields)
            return XieluParameters(*map(self._weights.vector, names))
        device = self._weights.matrix(f"{slot}.up").device
        return XieluParameters(*torch.tensor(numbers, device=device)[:, None])


def _in_runs(x: Tensor, size: int) -> Tensor:
    """x (N, D) as (N, D / size, size)."""
    return x.view(x.shape[0], x.shape[1] // size, size)


def _heads(x: Tensor, heads: int) -> Tensor:
    """x (N, H * D) as (N, H, D)."""
    return x.view(x.shape[0], heads, x.shape[1] // heads)


def _applied(function: Callable[[Tensor], Any], x: int, out: int | None = None) -> Run:
    """out = function(x), or x = function(x)."""
    result = x if out is None else out

    def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
        values[result] = function(values[x])

    return run


def _write_image(written: WriteImage) -> Run:
    """The cache of one sequence, and the position of the image there, stand for the cache.

    Keys and values are freed before those of all images are joined.
    """

    def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
        images, position = cache
        kept = [
            images.by_head(_heads(values.pop(each), written.kv_heads)) for each in written.reads
        ]
        images.add(ImageKeys(position, *kept))

    return run


def _activate(operation: Activate) -> Run:
    """No value of it has a name while it is computed: some functions make others of them."""
    x, up = operation.x, operation.up
    activation, clamp = operation.activation, operation.clamp

    def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
        if up is None:
            values[x] = activated(activation, values.pop(x))
        else:
            values[x] = gated(activation, values.pop(x), values.pop(up), clamp)

    return run


def _add(x: int, y: int, *, in_place: bool) -> Run:
    def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
        values[x] = values[x].add_(values[y]) if in_place else values[x] + values[y]

    return run


def _take(x: int, out: int, columns: slice) -> Run:
    def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
        values[out] = values[x][:, columns].clone(memory_format=torch.contiguous_format)

    return run


def _add_weighed(operation: AddWeighed) -> Run:
    x, y, weights, runs, more = (
        *(operation.x, operation.y, operation.weights),
        *(operation.runs, operation.more),
    )

    def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
        out = _heads(values[x], runs)
        added = _in_runs(values[y], out.shape[2])
        factors = values[weights] + more if more else values[weights]
        columns = torch.split_with_sizes(
            _heads(factors.to(out.dtype), runs), [1] * added.shape[1], dim=2
        )
        for index, column in enumerate(columns):
            out.addcmul_(column, added[:, index : index + 1])

    return run


def _add_to_runs(x: int, y: int) -> Run:
    def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
        added = values[y]
        _in_runs(values[x], added.shape[1])[:, 1:] += added[:, None]

    return run


def _compute(module: Module, x: int, out: int) -> Run:
    def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
        values[out] = module(values[x], batch, cache)

    return run


def _multiply(x: int, y: int) -> Run:
    def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
        factors = values[y]
        values[x] = _heads(values[x], factors.shape[1]).mul_(factors[..., None]).flatten(1)

    return run


def _join_rows(x: int, y: int, out: int) -> Run:
    def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
        values[out] = torch.cat((values[x], values[y]), dim=1)

    return run


def _join_runs(x: int, y: int, out: int, runs: int, size: int) -> Run:
    """y has as many runs of this size, or one for all."""

    def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
        last = _in_runs(values[y], size).expand(-1, runs, -1)
        values[out] = torch.cat((_heads(values[x], runs), last), dim=-1).flatten(1)

    return run


def _split(x: int, sizes: Mapping[int, int], runs: int, wide: Collection[int]) -> Run:
    """Copies of the parts of each run, by their sizes."""
    widths = [*sizes.values()]

    def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
        rows = values[x] if runs == 1 else _heads(values[x], runs)
        parts = torch.split_with_sizes(rows, widths, dim=-1)
        for out, part in zip(sizes, parts, strict=True):
            dtype = torch.float32 if out in wide else part.dtype
            copy = part.new_empty(part.shape, dtype=dtype).copy_(part)
            values[out] = copy if runs == 1 else copy.flatten(1)

    return run

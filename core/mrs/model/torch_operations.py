"""Operations as torch computes them, one by one: on every device, and the truth for other paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from mrs.graph.operations import (
    STREAM,
    Activate,
    Add,
    AddBias,
    AddToRuns,
    AddWeighed,
    Attend,
    AttendBothWays,
    ChooseKeys,
    ChosenKeys,
    Clamp,
    Compute,
    CutOff,
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
    Split,
    SumOfRanks,
    Take,
    Weigh,
    WriteCache,
    Xielu,
    last_uses,
)
from mrs.kernels.dense_products import linear, multiply_heads
from mrs.kernels.nonlinearities import activated, cut_off, cut_off_parts, gated
from mrs.kernels.rotate import rotate
from mrs.kernels.xielu import XieluParameters, xielu
from mrs.layers.rope.module import RopeTable
from mrs.model.batch import ForwardBatch
from mrs.model.given_values import given_value, room_for_choice
from mrs.model.model_weights import ModelWeights

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
        self._widths = graph.widths
        self._layer, self._owns_stream = layer, owns_stream
        self._steps: list[tuple[Run, tuple[int, ...]]] = []
        self._given_kinds = graph.given
        uses, given = last_uses(operations), {*graph.given}
        for index, each in enumerate(operations):
            for value in given & {*each.reads}:
                self._steps.append((self._given(value, graph.given[value]), ()))
            given -= {*each.reads}
            done = [x for x in {*each.values} - {STREAM, result} if uses[x] == index]
            self._steps.append((self._run_of(each), tuple(done)))

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

    def _run_of(self, operation: Operation) -> Run:
        match operation:
            case Normalize(x, out, slot, norm, size, is_shared):
                normed = self._weights.norm(slot, norm, is_shared=is_shared)
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
            case Scale(x, factor):
                by = self._weights.vector(factor) if isinstance(factor, str) else factor
                may_change = self._may_change(x)
                return _applied(lambda y: y.mul_(by) if may_change else y * by, x)
            case Clamp(x, least, most):
                return _applied(lambda y: y.clamp_(least, most), x)
            case Multiply(x, y):
                return _multiply(x, y)
            case Split(x, outs, runs):
                sizes = [self._widths[out] // runs for out in outs]
                return _split(x, dict(zip(outs, sizes, strict=True)))
            case Take(x, out, first):
                last = first + self._widths[out]
                return _applied(lambda y: y[:, first:last].clone(**_CONTIGUOUS), x, out)
            case Join():
                return self._join(operation)
            case Rotate() | WriteCache() | Attend() | AttendBothWays():
                return self._attend(operation)
            case ChooseKeys(x, weights, choice, heads):
                return self._choose(x, weights, self._given_kinds[choice], heads)
            case ProjectSmall():
                return self._project_small(operation)
            case ScaleEach(x, name, size):
                factors = self._weights.vector(name)[:, None]
                return _applied(lambda y: _in_runs(y, size).mul_(factors.to(y.dtype)).flatten(1), x)
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

        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            for out, multiply in products:
                values[out] = multiply(values[x])

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
        size, tail = (self._widths[join.out] - self._widths[join.x]) // join.runs, torch.empty(0)
        if join.y is None:
            device = self._weights.matrix("mixer.q").device
            tail = torch.tensor(join.tail, device=device).view(1, join.runs, size)

        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            x = _heads(values[join.x], join.runs)
            last = tail.to(x.dtype) if join.y is None else _in_runs(values[join.y], size)
            last = last.expand(x.shape[0], join.runs, size)
            values[join.out] = torch.cat((x, last), dim=-1).flatten(1)

        return run

    def _attend(self, operation: Rotate | WriteCache | Attend | AttendBothWays) -> Run:
        """Values of several heads are (N, H, D) to what computes them."""
        mixer, rope = self._mixer, self._rope

        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            match operation:
                case Rotate(x, heads, positions):
                    assert rope is not None
                    cos, sin = rope.angles(batch)
                    rotated = rotate(
                        _heads(values[x], heads), cos, sin, interleaved=positions.interleaved
                    )
                    values[x] = rotated.flatten(1)
                case WriteCache(keys, _, _, is_index=True):
                    mixer.write_index(values[keys][:, None], batch, cache)
                case WriteCache(keys, written, heads):
                    v = None if written is None else _heads(values[written], heads)
                    mixer.write(_heads(values[keys], heads), v, batch, cache)
                case Attend(x, out, attention, choice):
                    q = _heads(values[x], attention.heads)
                    chosen = () if choice is None else (values[choice],)
                    values[out] = mixer.attend(q, batch, cache, *chosen)
                case AttendBothWays(x, keys, written, out, attention):
                    q = _heads(values[x], attention.heads)
                    k, v = (_heads(values[each], attention.kv_heads) for each in (keys, written))
                    values[out] = mixer.attend_both_ways(q, k, v, batch)

        return run

    def _xielu(self, slot: str, numbers: Sequence[float]) -> XieluParameters:
        if not numbers:
            names = (f"{slot}.{name}" for name in XieluParameters._fields)
            return XieluParameters(*map(self._weights.vector, names))
        device = self._weights.matrix(f"{slot}.up").device
        return XieluParameters(*torch.tensor(numbers, device=device)[:, None])


_CONTIGUOUS = {"memory_format": torch.contiguous_format}


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


def _add_weighed(operation: AddWeighed) -> Run:
    x, y, weights, runs, more = (
        *(operation.x, operation.y, operation.weights),
        *(operation.runs, operation.more),
    )

    def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
        out = _heads(values[x], runs)
        added = _in_runs(values[y], out.shape[2])
        factors = _heads(values[weights] + more if more else values[weights], runs).to(out.dtype)
        for index in range(added.shape[1]):
            out.addcmul_(factors[:, :, index : index + 1], added[:, index : index + 1])

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


def _split(x: int, sizes: Mapping[int, int]) -> Run:
    """Copies of the parts of each run, by their sizes."""

    def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
        parts = torch.split(_in_runs(values[x], sum(sizes.values())), [*sizes.values()], dim=-1)
        for out, part in zip(sizes, parts, strict=True):
            values[out] = part.clone(**_CONTIGUOUS).flatten(1)

    return run

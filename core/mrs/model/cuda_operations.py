"""Operations of a layer in few launches of the CUDA kernels.

Each pattern below is a sequence of operations that one launch computes for up to 64 tokens,
whatever layer it is from. Of more tokens torch computes the products, and what comes after them:

    products   [Normalize] Project [AddBias …], and then [Activate] of a gate, or [Add] to another
               value, such as the stream
    heads      after a product of queries, keys and values: [Normalize both] Rotate both WriteCache
    norm       Normalize [Add]
    route      [Normalize] Route

All other operations are those of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mrs.graph.known_operations import SETTLED_OPERATIONS, unknown_field
from mrs.graph.operations import (
    STREAM,
    Activate,
    Add,
    AddBias,
    Normalize,
    Operation,
    Project,
    Rotate,
    Route,
    WriteCache,
    last_uses,
)
from mrs.kernels.cuda.fragment_matrix import FragmentMatrix
from mrs.kernels.cuda.launcher import Launcher, device_launcher
from mrs.kernels.cuda.products import ACTIVATIONS, can_join, kind_of, multiply
from mrs.kernels.cuda.routing import RouterWeights, RoutingRule, can_route, route
from mrs.kernels.cuda.rows import Heads, can_write, normalize, rotate_and_write
from mrs.kernels.nonlinearities import gated
from mrs.kernels.workspace.fragments import MOST_TOKENS
from mrs.layers.attention.module import AttentionModule
from mrs.layers.known_fields import Known, with_fields
from mrs.layers.moe.spec import Router
from mrs.layers.norm.spec import Norm
from mrs.model.batch import ForwardBatch
from mrs.model.native_experts import router_vectors
from mrs.model.torch_operations import Run, TorchOperations, Values
from mrs.quantization.cuda_kernels import has_cuda_products, has_cuda_rows
from mrs.quantization.matrix import DenseMatrix

_Matrix = FragmentMatrix | Tensor
#: The fields that the patterns take into account. Further ones are named by `with_fields`.
CUDA: Known = with_fields(SETTLED_OPERATIONS)


@dataclass(frozen=True)
class _Products:
    """The operations of a product with what is computed before and after it."""

    project: Project
    norm: Normalize | None
    biases: dict[int, str]
    matrices: Sequence[_Matrix]
    end: int  # the index after the last of these operations

    @property
    def x(self) -> int:
        return self.project.x if self.norm is None else self.norm.x


class CudaOperations(TorchOperations):
    """Some operations of a graph, of which kernels compute those that match a pattern."""

    #: How many sequences of operations do.
    matched = 0

    @staticmethod
    def supports(x: Tensor) -> bool:
        """Whether it computes x (N, hidden): any."""
        return True

    def _next(self, operations: Sequence[Operation], index: int) -> tuple[int, Run]:
        uses = last_uses(operations)
        for pattern in (self._match_products, self._match_route, self._match_norm):
            found = pattern(operations, index, uses)
            if found is not None and all(map(_is_known, operations[index : found[0]])):
                self.matched += 1
                end, run = found
                if any(STREAM in each.writes for each in operations[index:end]):
                    self._owns_stream = True
                return end, run
        return super()._next(operations, index)

    def _match_products(
        self, operations: Sequence[Operation], index: int, uses: dict[int, int]
    ) -> tuple[int, Run] | None:
        found = self._products(operations, index, uses)
        if found is None:
            return None
        for pattern in (self._gate, self._heads, self._sum):
            if (matched := pattern(operations, found, uses)) is not None:
                return matched
        return found.end, self._each_product(found)

    def _products(
        self, operations: Sequence[Operation], index: int, uses: dict[int, int]
    ) -> _Products | None:
        """[Normalize] Project [AddBias …] from `index` on, if the kernels read the matrices."""
        norm, end = None, index
        each = operations[index]
        if isinstance(each, Normalize) and self._is_of_rows(each):
            norm, end = each, index + 1
        project = operations[end] if end < len(operations) else None
        if not isinstance(project, Project) or project.norm or project.added is not None:
            return None
        if norm is not None and (norm.out != project.x or uses[norm.out] != end):
            return None
        if norm is not None and norm.out == STREAM:
            return None
        matrices = [self._readable(slot) for slot in project.slots]
        known = [each for each in matrices if each is not None]
        if len(known) < len(matrices):
            return None
        end += 1
        biases: dict[int, str] = {}
        while end < len(operations):
            bias = operations[end]
            if not isinstance(bias, AddBias) or bias.x not in project.outs or bias.x in biases:
                break
            biases[bias.x] = bias.name
            end += 1
        return _Products(project, norm, biases, known, end)

    def _is_of_rows(self, each: Normalize) -> bool:
        """Whether it is an RMS norm of whole rows."""
        is_rms = each.norm == Norm(each.norm.eps)
        return is_rms and each.size == self._widths[each.x] and not each.is_shared

    def _readable(self, slot: str) -> _Matrix | None:
        """What the kernels read of a matrix; None if they cannot."""
        matrix: Any = self._weights.matrix(slot)
        data = matrix.weight if isinstance(matrix, DenseMatrix) else matrix
        if not isinstance(data, FragmentMatrix | Tensor):
            return None
        name, (rows, columns) = kind_of(data), data.shape
        is_read = can_join([(name, rows, columns)]) and has_cuda_products(data.device, name)
        return data if is_read else None

    def _gate(
        self, operations: Sequence[Operation], found: _Products, uses: dict[int, int]
    ) -> tuple[int, Run] | None:
        """… Activate: the gate times what it multiplies."""
        each, outs = _at(operations, found.end), found.project.outs
        if not isinstance(each, Activate) or (each.x, each.up) != outs or len(outs) != 2:
            return None
        kinds = {(kind_of(matrix), tuple(matrix.shape)) for matrix in found.matrices}
        if each.activation not in ACTIVATIONS or len(kinds) > 1 or uses[outs[1]] > found.end:
            return None
        product, activation = self._launch(found, found.matrices, outs), each.activation

        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            values[outs[0]] = product(values[found.x], activation=activation)

        return found.end + 1, run

    def _sum(
        self, operations: Sequence[Operation], found: _Products, uses: dict[int, int]
    ) -> tuple[int, Run] | None:
        """… Add: the product added to a value."""
        each, outs = _at(operations, found.end), found.project.outs
        if not isinstance(each, Add) or (each.y,) != outs or uses[each.y] > found.end:
            return None
        product, x = self._launch(found, found.matrices, outs), each.x

        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            values[x] = product(values[found.x], added=values[x])

        return found.end + 1, run

    def _each_product(self, found: _Products) -> Run:
        """A launch for each matrix."""
        outs = found.project.outs
        products = [
            (out, self._launch(found, [matrix], [out]))
            for out, matrix in zip(outs, found.matrices, strict=True)
        ]

        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            for out, product in products:
                values[out] = product(values[found.x])

        return run

    def _heads(
        self, operations: Sequence[Operation], found: _Products, uses: dict[int, int]
    ) -> tuple[int, Run] | None:
        """… queries, keys and values to the cache, in two launches."""
        rope, mixer, outs = self._rope, self._mixer, found.project.outs
        if rope is None or type(mixer) is not AttentionModule or len(outs) != 3:
            return None
        if not has_cuda_rows(found.matrices[0].device):
            return None
        if not can_join([(kind_of(each), *each.shape) for each in found.matrices]):
            return None
        q, k, v = outs
        normed: list[Normalize] = []
        index = found.end
        while isinstance(each := _at(operations, index), Normalize):
            normed.append(each)
            index += 1
        rotated, written = operations[index : index + 2], _at(operations, index + 2)
        match rotated, written:
            case [Rotate(x=a), Rotate(x=b)], WriteCache(x_keys, x_values, kv_heads, False) if (
                a,
                b,
            ) == (q, k) and (x_keys, x_values) == (k, v):
                first, second = rotated
            case _:
                return None
        assert isinstance(first, Rotate)
        assert isinstance(second, Rotate)
        dim, end = self._widths[q] // first.heads, index + 3
        is_alike = self._widths[k] == self._widths[v] == kv_heads * dim
        if not is_alike or first.rope != second.rope or second.heads != kv_heads:
            return None
        if uses[k] >= end or uses[v] >= end:
            return None
        norms, eps = None, 0.0
        if normed:
            norm = normed[0].norm
            wanted = [(each, each, norm, dim, False) for each in (q, k)]
            if [(x.x, x.out, x.norm, x.size, x.is_shared) for x in normed] != wanted:
                return None
            if norm != Norm(norm.eps):
                return None
            weights = [self._weights.vector(f"{each.slot}.weight") for each in normed]
            norms, eps = torch.stack(weights).float(), norm.eps
        heads = Heads(first.heads, kv_heads, dim, rope.rope.interleaved, norms, eps)
        product, launcher = self._launch(found, found.matrices, outs), _launcher(found)

        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            qkv, kv = product(values[found.x]), cache[0].kv
            slots = batch.attention[cache[0].group].slot_mapping
            if can_write(kv):
                angles = rope.angles(batch)
                values[q] = rotate_and_write(qkv, angles, heads, slots, kv, launcher)
                return
            sizes = [self._widths[each] for each in outs]
            parts = (part.contiguous() for part in torch.split(qkv, sizes, dim=1))
            values.update(zip(outs, parts, strict=True))
            for by_torch in rest:
                by_torch(values, batch, cache)

        rest = [self._run_of(each) for each in operations[found.end : end]]
        return end, run

    def _launch(
        self, found: _Products, matrices: Sequence[_Matrix], outs: Sequence[int]
    ) -> Callable[..., Tensor]:
        """The products of x with some of the matrices, joined, with their norm and biases."""
        norm, launcher = found.norm, _launcher(found)
        weight = None if norm is None else self._weights.vector(f"{norm.slot}.weight")
        eps = 0.0 if norm is None else norm.norm.eps
        bias = self._joined_bias(found, outs)

        def product(x: Tensor, **after: Any) -> Tensor:
            if len(x) <= MOST_TOKENS:
                return multiply(x, matrices, launcher, norm=weight, eps=eps, bias=bias, **after)
            normed = x if weight is None else normalize(x, weight, eps, launcher)
            return _multiply_many(normed, matrices, bias, **after)

        return product

    def _joined_bias(self, found: _Products, outs: Sequence[int]) -> Tensor | None:
        """The biases of some products, float32, with zeros for those without; None if none has."""
        names = [found.biases.get(out) for out in outs]
        parts = [self._weights.optional_vector(name) if name else None for name in names]
        if all(part is None for part in parts):
            return None
        device = found.matrices[0].device
        rows = [self._widths[out] for out in outs]
        return torch.cat(
            [
                torch.zeros(count, device=device) if part is None else part.float()
                for count, part in zip(rows, parts, strict=True)
            ]
        )

    def _match_route(
        self, operations: Sequence[Operation], index: int, uses: dict[int, int]
    ) -> tuple[int, Run] | None:
        """[Normalize] Route: the norm of x, which experts read, too, and their choice."""
        norm, end, first = None, index, operations[index]
        if isinstance(first, Normalize) and self._is_of_rows(first) and first.out != STREAM:
            norm, end = first, index + 1
        each = _at(operations, end)
        if not isinstance(each, Route) or (norm is not None and norm.out != each.x):
            return None
        rule = _routing_rule(each.router)
        if rule is None:
            return None
        vectors = router_vectors(each.router, self._weights.optional_vector)
        device = vectors.weight.device
        router = RouterWeights(*vectors[:4])
        if not can_route(router, rule) or not has_cuda_rows(device):
            return None
        launcher, choice, routed = device_launcher(device), each.choice, each.x
        weight = None if norm is None else self._weights.vector(f"{norm.slot}.weight")
        x, eps = (each.x, 0.0) if norm is None else (norm.x, norm.norm.eps)
        rest = [self._run_of(operation) for operation in operations[index : end + 1]]

        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            if len(values[x]) > MOST_TOKENS:  # a block reads the whole router for each token
                for by_torch in rest:
                    by_torch(values, batch, cache)
                return
            normed, *chosen = route(values[x], router, rule, launcher, norm=weight, eps=eps)
            values[routed], values[choice] = normed, chosen

        return end + 1, run

    def _match_norm(
        self, operations: Sequence[Operation], index: int, uses: dict[int, int]
    ) -> tuple[int, Run] | None:
        """Normalize [Add]."""
        norm = operations[index]
        if not isinstance(norm, Normalize) or not self._is_of_rows(norm):
            return None
        weight, eps, x, out = (
            *(self._weights.vector(f"{norm.slot}.weight"), norm.norm.eps),
            *(norm.x, norm.out),
        )
        if not has_cuda_rows(weight.device):
            return None
        launcher, added = device_launcher(weight.device), _at(operations, index + 1)
        if isinstance(added, Add) and added.y == out and uses[out] == index + 1:
            to = added.x

            def run_sum(values: Values, batch: ForwardBatch, cache: Any) -> None:
                values[to] = normalize(values[x], weight, eps, launcher, values[to])

            return index + 2, run_sum

        def run(values: Values, batch: ForwardBatch, cache: Any) -> None:
            values[out] = normalize(values[x], weight, eps, launcher)

        return index + 1, run


def _multiply_many(
    x: Tensor,
    matrices: Sequence[_Matrix],
    bias: Tensor | None,
    added: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """As `multiply`, of any number of tokens x (N, columns), by torch."""
    rows = [matrix.shape[0] for matrix in matrices]
    out = torch.empty(len(x), sum(rows), dtype=x.dtype, device=x.device)
    for matrix, part in zip(matrices, torch.split(out, rows, dim=1), strict=True):
        if isinstance(matrix, FragmentMatrix):
            matrix.multiply_into(x, part)
        elif matrix.dtype == x.dtype:
            torch.mm(x, matrix.T, out=part)
        else:
            part.copy_(x.to(matrix.dtype) @ matrix.T)
    if bias is not None:
        out += bias.to(out.dtype)
    if activation is not None:
        gate, up = torch.split(out, rows, dim=1)
        return gated(activation, gate, up)
    return out if added is None else out.add_(added)


def _routing_rule(router: Router) -> RoutingRule | None:
    """What the kernel is told of a router; None if it cannot choose as it does."""
    if router.scoring == "sparsemixer" or router.input_norm is not None:
        return None
    if router.topk_group < router.n_group:
        return None
    return RoutingRule(
        router.top_k,
        router.scale,
        is_sigmoid=router.scoring == "sigmoid",
        sums_to_one=router.norm_topk_prob,
    )


def _is_known(operation: Operation) -> bool:
    """Whether the kernels know all of its fields."""
    return unknown_field(operation, CUDA) is None


def _at(operations: Sequence[Operation], index: int) -> Operation | None:
    return operations[index] if index < len(operations) else None


def _launcher(found: _Products) -> Launcher:
    return device_launcher(found.matrices[0].device)

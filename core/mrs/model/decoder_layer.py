"""A layer of a decoder: token mixer and feed-forward module with their norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from mrs.graph.layer_graph import native_graph
from mrs.graph.operations import STREAM, Add, Compute, Normalize, Operation, Scale, last_uses
from mrs.graph.program import parts_of
from mrs.kernels.cpu.library import native_library
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.layers.laurel.module import LaurelModule
from mrs.layers.layer import Layer
from mrs.layers.layer_inputs.module import GatedInputModule
from mrs.layers.rope.module import RopeTable
from mrs.model.batch import ForwardBatch
from mrs.model.model_weights import ModelWeights, NormModule
from mrs.model.modules import build_feed_forward, build_mixer
from mrs.model.native_layers import NativePart
from mrs.model.triton_blocks import triton_blocks


class DecoderLayer:
    """The operations of a layer of any style but `gated`, in parts of the native library and torch.

    `index` is that of the layer in the batch's `layer_inputs`. If several processes share its
    weights, it adds up what each computes. If it `reads_elsewhere`, the keys and values that it
    attends to are on another device, where the native library cannot read them.
    """

    def __init__(
        self,
        layer: Layer,
        hidden_size: int,
        index: int,
        weights: ModelWeights,
        rope: RopeTable | None,
        *,
        reads_elsewhere: bool = False,
    ) -> None:
        self._index, self._gated_input = index, None
        if layer.gated_input is not None:
            self._gated_input = GatedInputModule(layer.gated_input, weights)
        self.mixer = build_mixer(layer.mixer, weights, rope)
        self._feed_forward = build_feed_forward(layer.feed_forward, weights)
        modules = TorchModules(layer, weights, self.mixer, self._feed_forward, self.own_input)
        library = native_library() if _is_on_cpu(weights) else None

        def is_packed(slot: str) -> bool:
            if library is None or (reads_elsewhere and slot.startswith("mixer.")):
                return False
            return isinstance(weights.matrix(slot), PackedMatrix)

        graph = native_graph(
            layer,
            hidden_size,
            is_packed,
            has_ranks=weights.sum_of_ranks is not None,
            is_inner=layer.altup is not None,
        )
        blocks = triton_blocks(layer, weights, rope)
        self._parts: list[NativePart | TorchPart] = []
        for operations, is_native in parts_of(graph):
            if is_native:
                assert library is not None
                self._parts.append(NativePart(library, operations, graph, weights, rope, index))
            else:
                self._parts.append(TorchPart(operations, modules, blocks))

    @property
    def has_host_choices(self) -> bool:
        """True if the host routes tokens to the experts of a mixture."""
        return not getattr(self._feed_forward, "is_grouped", True)

    @property
    def native(self) -> NativePart | None:
        """The whole layer, if the native library computes it."""
        part = self._parts[0] if len(self._parts) == 1 else None
        return part if isinstance(part, NativePart) else None

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Any) -> Tensor:
        """x (N, hidden) to (N, hidden); `cache` has this layer's cache of each sequence."""
        owned = False
        for part in self._parts:
            if isinstance(part, NativePart):
                x = x if owned else x.clone(memory_format=torch.contiguous_format)
                part(x, batch, cache)
            else:
                x = part(x, batch, cache, owned=owned)
            owned = True
        return x

    compute = __call__  # of the active one of several streams

    def own_input(self, x: Tensor, batch: ForwardBatch) -> Tensor | None:
        """What the layer's own input adds, (N, hidden), if it has one."""
        if self._gated_input is None or batch.layer_inputs is None:
            return None
        return self._gated_input(x, batch.layer_inputs[:, self._index])


def _is_on_cpu(weights: ModelWeights) -> bool:
    """Whether a layer is on the CPU: its experts may be while the layer itself is not."""
    router = weights.optional_vector("ffn.router.weight")
    return router is None or router.is_cpu


class TorchPart:
    """Operations that torch computes one by one, or for few tokens Triton in few launches."""

    def __init__(
        self, operations: Sequence[Operation], modules: TorchModules, blocks: Mapping[str, Block]
    ) -> None:
        self._modules = modules
        self._norms = {
            each.slot: modules.norm(each) for each in operations if isinstance(each, Normalize)
        }
        uses = last_uses(operations)
        #: Each operation with the values that nothing needs after it.
        self._operations = [
            (each, [x for x in {*each.values} - {STREAM} if uses[x] == index])
            for index, each in enumerate(operations)
        ]
        names = [each.module for each in operations if isinstance(each, Compute)]
        self._block = next((blocks[name] for name in names if name in blocks), None)

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Any, *, owned: bool) -> Tensor:
        """x (N, hidden) to (N, hidden), which may be x if that is `owned`: changed."""
        if self._block is not None and self._block.supports(x):
            return self._block(x, batch, cache)
        values: dict[int, Tensor] = {STREAM: x}
        changeable = {STREAM} if owned else set()
        for operation, done in self._operations:
            self._compute(operation, values, changeable, batch, cache)
            for value in done:
                values.pop(value, None)
        return values[STREAM]

    def _compute(
        self,
        operation: Operation,
        values: dict[int, Tensor],
        changeable: set[int],
        batch: ForwardBatch,
        cache: Any,
    ) -> None:
        """Compute an operation; `changeable` are the values whose memory is no one else's."""
        match operation:
            case Normalize(x, out, slot):
                values[out] = self._norms[slot](values[x])
                changeable.add(out)
            case Compute(x, out, module):
                result = self._modules.compute(module, values[x], batch, cache)
                if result is not None:
                    values[out] = result
            case Add(x, y) if y in values:
                may_change = x in changeable or x != STREAM
                values[x] = values[x].add_(values[y]) if may_change else values[x] + values[y]
                changeable.add(x)
            case Add():
                pass
            case Scale(x, factor):
                by = self._modules.factor(factor)
                values[x] = values[x].mul_(by) if x in changeable else values[x] * by
                changeable.add(x)
            case _:
                raise TypeError(f"torch computes no {type(operation).__name__} by itself")


class Block(Protocol):
    """A part of a layer in few launches."""

    def supports(self, x: Tensor) -> bool:
        """Whether it computes x (N, hidden)."""

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Any) -> Tensor:
        """x (N, hidden) to (N, hidden)."""


class TorchModules:
    """What the operations of a layer name."""

    def __init__(
        self,
        layer: Layer,
        weights: ModelWeights,
        mixer: Callable[[Tensor, ForwardBatch, Any], Tensor],
        feed_forward: Callable[[Tensor], Tensor],
        own_input: Callable[[Tensor, ForwardBatch], Tensor | None],
    ) -> None:
        self._weights = weights
        self._laurel = LaurelModule(layer.laurel, weights) if layer.laurel else None
        self._mixer, self._feed_forward, self._own_input = mixer, feed_forward, own_input

    def norm(self, operation: Normalize) -> NormModule:
        return self._weights.norm(operation.slot, operation.norm)

    def factor(self, factor: float | str) -> float | Tensor:
        return self._weights.vector(factor) if isinstance(factor, str) else factor

    def compute(self, module: str, x: Tensor, batch: ForwardBatch, cache: Any) -> Tensor | None:
        """What the module makes of x (N, hidden), (N, hidden); None for nothing."""
        match module:
            case "mixer":
                return self._mixer(x, batch, cache)
            case "ffn":
                return self._feed_forward(x)
            case "gated_input":
                return self._own_input(x, batch)
            case "laurel" if self._laurel is not None:
                return self._laurel(x)
            case "sum_of_ranks" if self._weights.sum_of_ranks is not None:
                return self._weights.sum_of_ranks(x)
        raise ValueError(module)


def maybe_norm(norm: NormModule | None, x: Tensor) -> Tensor:
    """x after `norm`, or x without one."""
    return x if norm is None else norm(x)

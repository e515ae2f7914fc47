"""A layer of a decoder: token mixer and feed-forward module with their norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from mrs.graph.layer_graph import native_graph
from mrs.graph.operations import modules_of
from mrs.graph.program import parts_of
from mrs.graph.stream_operations import INNER_LAYER, stream_graph
from mrs.kernels.cpu.library import native_library
from mrs.kernels.cpu.packed import PackedMatrix
from mrs.layers.layer import Layer
from mrs.layers.rope.module import RopeTable
from mrs.model.batch import ForwardBatch
from mrs.model.cuda_operations import CudaOperations
from mrs.model.model_weights import ModelWeights, NormModule
from mrs.model.modules import build_feed_forward, build_mixer
from mrs.model.native_layers import NativePart
from mrs.model.torch_operations import Module, TorchOperations
from mrs.model.triton_blocks import triton_blocks


class DecoderLayer:
    """The operations of a layer, in parts of the native library and torch.

    `index` is that of the layer in the batch's `layer_inputs`. If several processes share its
    weights, it adds up what each computes. If it `reads_elsewhere`, the keys and values that it
    attends to are on another device, where the native library cannot read them. Its input is
    overwritten if it `owns` it.
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
        owns_input: bool = False,
    ) -> None:
        self.mixer = build_mixer(layer.mixer, weights, rope)
        modules: dict[str, Module] = {"mixer": self.mixer}
        feed_forward = build_feed_forward(layer.feed_forward, weights)
        modules["ffn"] = lambda x, batch, cache: feed_forward(x)
        #: True if the host routes tokens to the experts of a mixture.
        self.has_host_choices = not getattr(feed_forward, "is_grouped", True)
        library = native_library() if _is_on_cpu(weights) else None

        def is_packed(slot: str) -> bool:
            if library is None or (reads_elsewhere and slot.startswith(("mixer.", "cross."))):
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
                continue
            arguments = operations, graph, weights, modules, self.mixer, feed_forward, rope
            owns = owns_input or bool(self._parts)
            by_torch = TorchOperations(*arguments, layer=index, owns_stream=owns)
            by_kernels = CudaOperations(*arguments, layer=index, owns_stream=owns)
            names = modules_of(operations)
            block = next((block for name, block in blocks.items() if name in names), None)
            fast: list[Block] = [by_kernels] if by_kernels.matched else []
            self._parts.append(TorchPart(by_torch, [*fast, *([block] if block else [])]))

    @property
    def native(self) -> NativePart | None:
        """The whole layer, if the native library computes it."""
        part = self._parts[0] if len(self._parts) == 1 else None
        return part if isinstance(part, NativePart) else None

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Any) -> Tensor:
        """x (N, hidden) to (N, hidden); `cache` has this layer's cache of each sequence."""
        for index, part in enumerate(self._parts):
            if isinstance(part, NativePart):
                x = x if index else x.clone(memory_format=torch.contiguous_format)
                part(x, batch, cache)
            else:
                x = part(x, batch, cache)
        return x


class StreamsLayer:
    """A layer of several streams, of which an `inner` one computes the active one."""

    def __init__(
        self,
        layer: Layer,
        hidden_size: int,
        index: int,
        weights: ModelWeights,
        inner: DecoderLayer,
    ) -> None:
        graph, streams = stream_graph(layer, hidden_size)
        self._operations = TorchOperations(
            graph.operations, graph, weights, {INNER_LAYER: inner}, result=streams, layer=index
        )
        self.mixer, self.has_host_choices = inner.mixer, inner.has_host_choices

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Any) -> Tensor:
        """x (N, streams * hidden) to the same shape."""
        return self._operations(x, batch, cache)


def _is_on_cpu(weights: ModelWeights) -> bool:
    """Whether a layer is on the CPU: its experts may be while the layer itself is not."""
    router = weights.optional_vector("ffn.router.weight")
    return router is None or router.is_cpu


class TorchPart:
    """Operations that torch computes one by one, or for few tokens a block in few launches."""

    def __init__(self, operations: TorchOperations, blocks: Sequence[Block]) -> None:
        self._operations, self._blocks = operations, blocks

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Any) -> Tensor:
        """x (N, hidden) to (N, hidden)."""
        computing = next((each for each in self._blocks if each.supports(x)), self._operations)
        return computing(x, batch, cache)


class Block(Protocol):
    """A part of a layer in few launches."""

    def supports(self, x: Tensor) -> bool:
        """Whether it computes x (N, hidden)."""

    def __call__(self, x: Tensor, batch: ForwardBatch, cache: Any) -> Tensor:
        """x (N, hidden) to (N, hidden)."""


def maybe_norm(norm: NormModule | None, x: Tensor) -> Tensor:
    """x after `norm`, or x without one."""
    return x if norm is None else norm(x)

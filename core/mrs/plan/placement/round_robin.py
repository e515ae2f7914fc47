"""How many layers fit on GPUs when they are dealt round robin to those that have room.

The rules are those of Ollama's estimator of March 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class GpuMemory:
    """A GPU as the estimate sees it; `minimum_bytes` is what its runtime takes for itself."""

    library: str
    free_bytes: int
    minimum_bytes: int


@dataclass(frozen=True)
class GpuEstimate:
    """What would be loaded; the output tensor counts as one layer.

    `tensor_split` is the layers a GPU as `"3,3"`, empty for one GPU. `vram_bytes` is what the
    GPUs hold, `total_bytes` adds what did not fit. With no layer on a GPU, or on library `cpu`,
    all but `total_bytes` are zero or empty.
    """

    layers: int
    graph_bytes: int
    vram_bytes: int
    total_bytes: int
    tensor_split: str
    gpu_bytes: list[int]


class FitPrediction(NamedTuple):
    """Whether everything fits on the GPUs of one library, and the VRAM of the last one tried."""

    fits: bool
    vram_bytes: int


def estimate_gpu_layers(
    *,
    layer_bytes: Sequence[int],
    output_bytes: int,
    kv_bytes_total: int,
    graph_partial_bytes: int,
    graph_full_bytes: int,
    projector_bytes: int,
    projector_graph_bytes: int,
    overhead_bytes: int,
    gpus: Sequence[GpuMemory],
    requested_layers: int = -1,
) -> GpuEstimate:
    """How many layers fit on GPUs of one library, each holding back one layer as a buffer.

    The KV is shared out evenly. Layer `i` goes to the `i % j`-th of the `j` GPUs that have had
    room so far; a GPU that once fails is out for good. The output tensor tries the `n % j`-th for
    `n` layers placed and falling `j`, so it may try one GPU twice and another never; where
    `requested_layers` are reached without it, it does not count. The graph is `graph_full_bytes`
    if all fits and `graph_partial_bytes` if not; several GPUs always use the partial one and
    `metal` always the full one. The projector lives on the first GPU with room.
    """
    if not gpus:
        return GpuEstimate(0, 0, 0, 0, "", [])
    partial, full = _graphs(gpus, graph_partial_bytes, graph_full_bytes)
    kv_share = kv_bytes_total // len(layer_bytes) if layer_bytes else 0
    sizes = [weights + kv_share for weights in layer_bytes]
    dealer = _Dealer(gpus, overhead_bytes + max(partial, full))
    dealer.admit(sizes[0] if sizes else 0, projector_bytes + projector_graph_bytes)
    limit = requested_layers if requested_layers >= 0 else len(sizes) + 1
    for index, size in enumerate(sizes):
        if dealer.layers < limit:
            dealer.deal(index, size)
    fully_loaded = dealer.layers >= len(sizes)
    overflow = (len(sizes) - dealer.layers) * sizes[-1] if sizes else 0
    if output_bytes > 0 and dealer.layers < limit:
        dealer.deal_output(output_bytes)
        if dealer.layers < len(sizes) + 1:
            fully_loaded = False
            overflow += output_bytes
    return dealer.estimate(full if fully_loaded else partial, overflow)


def predict_fit(
    *,
    layer_bytes: Sequence[int],
    output_bytes: int,
    kv_bytes_total: int,
    graph_partial_bytes: int,
    graph_full_bytes: int,
    projector_bytes: int,
    projector_graph_bytes: int,
    overhead_bytes: int,
    gpus: Sequence[GpuMemory],
    requested_layers: int = -1,
) -> FitPrediction:
    """Does all of it (or the requested layers) fit on one library's GPUs?

    If not, something that is loaded must go first. The GPUs may belong to several libraries,
    which are tried in the order of their first GPU.
    """
    wanted = requested_layers
    if wanted < 0:
        wanted = len(layer_bytes) + (1 if output_bytes > 0 else 0)
    vram_bytes = 0
    for library in dict.fromkeys(gpu.library for gpu in gpus):
        estimate = estimate_gpu_layers(
            layer_bytes=layer_bytes,
            output_bytes=output_bytes,
            kv_bytes_total=kv_bytes_total,
            graph_partial_bytes=graph_partial_bytes,
            graph_full_bytes=graph_full_bytes,
            projector_bytes=projector_bytes,
            projector_graph_bytes=projector_graph_bytes,
            overhead_bytes=overhead_bytes,
            gpus=[gpu for gpu in gpus if gpu.library == library],
            requested_layers=requested_layers,
        )
        vram_bytes = estimate.vram_bytes
        if 0 < estimate.layers >= wanted:
            return FitPrediction(True, vram_bytes)
    return FitPrediction(False, vram_bytes)


def _graphs(gpus: Sequence[GpuMemory], partial: int, full: int) -> tuple[int, int]:
    """The partial and the full graph size that these GPUs use."""
    full = full or partial
    if gpus[0].library == "metal":
        return full, full
    return (partial, partial) if len(gpus) > 1 else (partial, full)


class _Dealer:
    """The hands: what each GPU holds and which still take part."""

    def __init__(self, gpus: Sequence[GpuMemory], held_back_bytes: int) -> None:
        self.gpus = gpus
        self.held_back_bytes = held_back_bytes
        self.gpu_bytes = [0] * len(gpus)
        self.counts = [0] * len(gpus)
        self.open: list[int] = []
        self.layers = 0

    def admit(self, layer_bytes: int, projector_bytes: int) -> None:
        """Let in the GPUs that hold the graph, their minimum, the buffer layer and one more."""
        for index, gpu in enumerate(self.gpus):
            extra = 0 if self.open else projector_bytes
            needed = self.held_back_bytes + extra + gpu.minimum_bytes + 2 * layer_bytes
            if gpu.free_bytes >= needed:
                self.open.append(index)
                self.gpu_bytes[index] = gpu.minimum_bytes + layer_bytes + extra

    def deal(self, turn: int, size_bytes: int) -> None:
        """Give the next layer to the GPU whose turn it is, dropping those without room."""
        while self.open:
            gpu = self.open[turn % len(self.open)]
            if self._give(gpu, size_bytes):
                return
            self.open.remove(gpu)

    def deal_output(self, size_bytes: int) -> None:
        """Give the output tensor to a GPU with room, dropping none."""
        for count in range(len(self.open), 0, -1):
            if self._give(self.open[self.layers % count], size_bytes):
                return

    def _give(self, gpu: int, size_bytes: int) -> bool:
        """Give a GPU one more layer, if it has room."""
        if self.gpus[gpu].free_bytes <= self.held_back_bytes + self.gpu_bytes[gpu] + size_bytes:
            return False
        self.gpu_bytes[gpu] += size_bytes
        self.counts[gpu] += 1
        self.layers += 1
        return True

    def estimate(self, graph_bytes: int, overflow_bytes: int) -> GpuEstimate:
        """Close the books: the GPUs with layers get the graph."""
        held = [
            size + (graph_bytes if count else 0)
            for size, count in zip(self.gpu_bytes, self.counts, strict=True)
        ]
        total = sum(held) + overflow_bytes
        if self.gpus[0].library == "cpu" or not self.layers:
            return GpuEstimate(0, 0, 0, total, "", [])
        split = ",".join(map(str, self.counts)) if len(self.gpus) > 1 else ""
        return GpuEstimate(self.layers, graph_bytes, sum(held), total, split, held)

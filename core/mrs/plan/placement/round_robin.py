"""How many layers fit on GPUs if they are assigned in round robin.

The rules are those of Ollama's estimator of March 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class GpuMemory:
    """Memory of a GPU; its runtime needs `minimum_bytes`."""

    library: str
    free_bytes: int
    minimum_bytes: int


@dataclass(frozen=True)
class GpuDemand:
    """The bytes that a model needs on GPUs; `overhead_bytes` are kept free on each of them."""

    layer_bytes: Sequence[int]
    output_bytes: int
    kv_bytes_total: int
    graph_partial_bytes: int
    graph_full_bytes: int
    projector_bytes: int
    projector_graph_bytes: int
    overhead_bytes: int


@dataclass(frozen=True)
class GpuEstimate:
    """What would be loaded; the output tensor counts as one layer.

    `tensor_split` is the number of layers on each GPU, such as `"3,3"`, empty for one GPU.
    `vram_bytes` is the memory on GPUs, `total_bytes` also has what did not fit. If no layer is on a
    GPU, or the library is `cpu`, all fields but `total_bytes` are zero or empty.
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
    demand: GpuDemand, gpus: Sequence[GpuMemory], requested_layers: int = -1
) -> GpuEstimate:
    """How many layers fit on GPUs of one library; each GPU reserves one layer as a buffer.

    - The KV cache is divided equally between the layers.
    - Layer `i` goes to the `i % j`-th of the `j` remaining GPUs. A GPU without enough memory for a
      layer is removed from the list.
    - The output tensor tries the `n % j`-th GPU, for `n` placed layers and `j` from the number of
      remaining GPUs down to 1; it may try one GPU twice and another never. It does not count if
      `requested_layers` are reached without it.
    - The graph needs `graph_full_bytes` if all layers fit, otherwise `graph_partial_bytes`; several
      GPUs always use the partial graph, and `metal` always the full one.
    - The projector is on the first GPU with enough memory.
    """
    if not gpus:
        return GpuEstimate(0, 0, 0, 0, "", [])
    partial, full = _graphs(gpus, demand.graph_partial_bytes, demand.graph_full_bytes)
    kv_share = demand.kv_bytes_total // max(len(demand.layer_bytes), 1)
    sizes = [weights + kv_share for weights in demand.layer_bytes]
    assignment = _Assignment(gpus, demand.overhead_bytes + max(partial, full))
    projector_bytes = demand.projector_bytes + demand.projector_graph_bytes
    assignment.admit(sizes[0] if sizes else 0, projector_bytes)
    limit = requested_layers if requested_layers >= 0 else len(sizes) + 1
    for index, size in enumerate(sizes):
        if assignment.layers < limit:
            assignment.assign(index, size)
    fully_loaded = assignment.layers >= len(sizes)
    overflow = (len(sizes) - assignment.layers) * sizes[-1] if sizes else 0
    if demand.output_bytes > 0 and assignment.layers < limit:
        assignment.assign_output(demand.output_bytes)
        if assignment.layers < len(sizes) + 1:
            fully_loaded = False
            overflow += demand.output_bytes
    return assignment.estimate(full if fully_loaded else partial, overflow)


def predict_fit(
    demand: GpuDemand, gpus: Sequence[GpuMemory], requested_layers: int = -1
) -> FitPrediction:
    """Whether the whole model (or the requested layers) fits on the GPUs of one library.

    If not, a loaded model must be unloaded first. The GPUs may belong to several libraries, which
    are tried in the order of their first GPU.
    """
    wanted = requested_layers
    if wanted < 0:
        wanted = len(demand.layer_bytes) + (1 if demand.output_bytes > 0 else 0)
    vram_bytes = 0
    for library in dict.fromkeys(gpu.library for gpu in gpus):
        library_gpus = [gpu for gpu in gpus if gpu.library == library]
        estimate = estimate_gpu_layers(demand, library_gpus, requested_layers)
        vram_bytes = estimate.vram_bytes
        if 0 < estimate.layers >= wanted:
            return FitPrediction(True, vram_bytes)
    return FitPrediction(False, vram_bytes)


def _graphs(gpus: Sequence[GpuMemory], partial: int, full: int) -> tuple[int, int]:
    """Sizes of the partial and the full graph on these GPUs."""
    full = full or partial
    if gpus[0].library == "metal":
        return full, full
    return (partial, partial) if len(gpus) > 1 else (partial, full)


class _Assignment:
    """Assigns layers to GPUs; `open` has the GPUs that may get more."""

    def __init__(self, gpus: Sequence[GpuMemory], reserved_bytes: int) -> None:
        self.gpus = gpus
        self.reserved_bytes = reserved_bytes
        self.gpu_bytes = [0] * len(gpus)
        self.counts = [0] * len(gpus)
        self.open: list[int] = []
        self.layers = 0

    def admit(self, layer_bytes: int, projector_bytes: int) -> None:
        """Open the GPUs that fit the graph, their minimum, the buffer layer and one more layer."""
        for index, gpu in enumerate(self.gpus):
            extra = 0 if self.open else projector_bytes
            needed = self.reserved_bytes + extra + gpu.minimum_bytes + 2 * layer_bytes
            if gpu.free_bytes >= needed:
                self.open.append(index)
                self.gpu_bytes[index] = gpu.minimum_bytes + layer_bytes + extra

    def assign(self, layer: int, size_bytes: int) -> None:
        """Give a layer to the next GPU in round robin; close GPUs that do not fit it."""
        while self.open:
            gpu = self.open[layer % len(self.open)]
            if self._give(gpu, size_bytes):
                return
            self.open.remove(gpu)

    def assign_output(self, size_bytes: int) -> None:
        """Give the output tensor to a GPU that fits it; close none."""
        for count in range(len(self.open), 0, -1):
            if self._give(self.open[self.layers % count], size_bytes):
                return

    def _give(self, gpu: int, size_bytes: int) -> bool:
        """Give a GPU one more layer, if it fits."""
        if self.gpus[gpu].free_bytes <= self.reserved_bytes + self.gpu_bytes[gpu] + size_bytes:
            return False
        self.gpu_bytes[gpu] += size_bytes
        self.counts[gpu] += 1
        self.layers += 1
        return True

    def estimate(self, graph_bytes: int, overflow_bytes: int) -> GpuEstimate:
        """The result; GPUs with layers also get the graph."""
        gpu_totals = [
            size + (graph_bytes if count else 0)
            for size, count in zip(self.gpu_bytes, self.counts, strict=True)
        ]
        total = sum(gpu_totals) + overflow_bytes
        if self.gpus[0].library == "cpu" or not self.layers:
            return GpuEstimate(0, 0, 0, total, "", [])
        split = ",".join(map(str, self.counts)) if len(self.gpus) > 1 else ""
        return GpuEstimate(self.layers, graph_bytes, sum(gpu_totals), total, split, gpu_totals)

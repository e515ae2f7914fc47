"""Ollama's estimator of March 2025, transcribed step by step: the truth for `estimate_gpu_layers`.

It follows the original's loops and variables, and shares no code with the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def estimate(
    layer_bytes: Sequence[int],
    output_bytes: int,
    kv_bytes: int,
    graph_partial: int,
    graph_full: int,
    projector_bytes: int,
    overhead: int,
    gpus: Sequence[tuple[str, int, int]],
    requested: int,
) -> dict[str, Any]:
    """Layers, bytes and split for GPUs of (library, free bytes, minimum bytes).

    Needs a GPU and a layer; `requested` below 0 asks for all layers.
    """
    block_count = len(layer_bytes)
    layer_size = layer_bytes[0] + kv_bytes // block_count
    if graph_full == 0:
        graph_full = graph_partial
    if gpus[0][0] == "metal":
        graph_partial = graph_full
    elif len(gpus) > 1:
        graph_full = graph_partial
    graph = max(graph_partial, graph_full)

    layer_count = 0
    layer_counts = [0] * len(gpus)
    allocations = [0] * len(gpus)
    gpus_with_space: list[int] = []
    for i, (_, free, minimum) in enumerate(gpus):
        gpu_zero_overhead = projector_bytes if not gpus_with_space else 0
        if free < overhead + gpu_zero_overhead + graph + minimum + 2 * layer_size:
            continue
        gpus_with_space.append(i)
        allocations[i] += minimum + layer_size
    if gpus_with_space:
        allocations[gpus_with_space[0]] += projector_bytes

    for i in range(block_count):
        layer_size = layer_bytes[i] + kv_bytes // block_count
        if requested >= 0 and layer_count >= requested:
            continue
        j = len(gpus_with_space)
        while j > 0:
            g = gpus_with_space[i % j]
            if gpus[g][1] > overhead + allocations[g] + graph + layer_size:
                allocations[g] += layer_size
                layer_counts[g] += 1
                layer_count += 1
                break
            del gpus_with_space[i % j]
            j -= 1

    fully_loaded = layer_count >= block_count
    overflow = 0
    for _ in range(layer_count, block_count):
        overflow += layer_size

    if output_bytes > 0 and (requested < 0 or layer_count < requested):
        j = len(gpus_with_space)
        while j > 0:
            g = gpus_with_space[layer_count % j]
            if gpus[g][1] > overhead + allocations[g] + graph + output_bytes:
                allocations[g] += output_bytes
                layer_counts[g] += 1
                layer_count += 1
                break
            j -= 1
        if layer_count < block_count + 1:
            fully_loaded = False
            overflow += output_bytes

    graph = graph_full if fully_loaded else graph_partial
    for i in range(len(gpus)):
        if layer_counts[i] > 0:
            allocations[i] += graph
    total = sum(allocations) + overflow
    if gpus[0][0] == "cpu" or layer_count == 0:
        return {
            "layers": 0,
            "graph_bytes": 0,
            "vram_bytes": 0,
            "total_bytes": total,
            "tensor_split": "",
            "gpu_bytes": [],
        }
    return {
        "layers": layer_count,
        "graph_bytes": graph,
        "vram_bytes": sum(allocations),
        "total_bytes": total,
        "tensor_split": ",".join(map(str, layer_counts)) if len(gpus) > 1 else "",
        "gpu_bytes": allocations,
    }

"""The `spread` strategy: every GPU gets its share of the layers, the CPU what is left."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from mrs.devices.device import DeviceMemory
from mrs.plan.placement.fill import auto_map
from mrs.plan.placement.placement import Demand, Placement, no_layer_warning, without_shared_cpu
from mrs.plan.placement.round_robin import GpuMemory, estimate_gpu_layers, predict_fit


def spread(
    *,
    layer_bytes: Sequence[int],
    non_mapped_bytes: int,
    kv_bytes_per_layer: int | Sequence[int],
    mapped_act_bytes: int,
    non_mapped_act_bytes: int,
    devices: Sequence[DeviceMemory],
) -> Placement:
    """Layers in the proportions of `estimate_gpu_layers`, in consecutive runs.

    The estimate deals layers out one by one; a run of as many layers can be larger when layers
    differ, so a GPU passes on to the next what does not fit. With equal layers more memory never
    means fewer layers on GPUs; with unequal ones the round robin gives no such promise. The
    estimate holds back room on each GPU: when that leaves a layer without a device, `auto_map`
    places all of them, and raises DoesNotFit if it cannot either.
    """
    demand = Demand.of(
        layer_bytes, non_mapped_bytes, kv_bytes_per_layer, mapped_act_bytes, non_mapped_act_bytes
    )
    candidates = without_shared_cpu(devices)
    gpus = [device for device in candidates if device.kind != "cpu"]
    shares = _shares(demand, gpus)
    layers: list[tuple[int, int]] = []
    warnings: list[str] = []
    placed = due = 0
    for index, device in enumerate(candidates):
        is_cpu = device.kind == "cpu"
        due = demand.layer_count - placed if is_cpu else due + shares[index]
        room = device.usable_bytes - demand.fixed_bytes(first=not layers)
        count = min(due, demand.layers_that_fit(placed, room))
        if count:
            layers.append((index, count))
            placed += count
            due -= count
        elif placed < demand.layer_count:
            warnings.append(no_layer_warning(device))
    if placed < demand.layer_count:
        return auto_map(
            layer_bytes=layer_bytes,
            non_mapped_bytes=non_mapped_bytes,
            kv_bytes_per_layer=kv_bytes_per_layer,
            mapped_act_bytes=mapped_act_bytes,
            non_mapped_act_bytes=non_mapped_act_bytes,
            devices=devices,
        )
    if len(layers) > 1:
        warnings += _one_gpu_would_do(demand, gpus)
    return Placement(layers, warnings)


def _shares(demand: Demand, gpus: Sequence[DeviceMemory]) -> list[int]:
    """The layers that the estimate deals to each GPU."""
    estimate = estimate_gpu_layers(**_terms(demand), gpus=_gpu_memories(gpus))
    if not estimate.layers:
        return [0] * len(gpus)
    return (
        [int(n) for n in estimate.tensor_split.split(",")] if len(gpus) > 1 else [estimate.layers]
    )


def _one_gpu_would_do(demand: Demand, gpus: Sequence[DeviceMemory]) -> list[str]:
    """Ollama spreads a model by itself only where it predicts that no GPU can hold all of it."""
    terms = _terms(demand)
    alone = (gpu.label for gpu in gpus if predict_fit(**terms, gpus=_gpu_memories([gpu])).fits)
    return [
        f"{label} can hold the whole model: without --strategy spread no token would cross devices"
        for label in islice(alone, 1)
    ]


def _terms(demand: Demand) -> dict[str, Any]:
    """The demand as the estimate wants it: KV with its layer, no output tensor of its own."""
    return {
        "layer_bytes": [w + kv for w, kv in zip(demand.layer_bytes, demand.kv_bytes, strict=True)],
        "output_bytes": 0,
        "kv_bytes_total": 0,
        "graph_partial_bytes": demand.mapped_act_bytes,
        "graph_full_bytes": demand.mapped_act_bytes,
        "projector_bytes": demand.non_mapped_bytes,
        "projector_graph_bytes": max(0, demand.non_mapped_act_bytes - demand.mapped_act_bytes),
        "overhead_bytes": 0,
    }


def _gpu_memories(gpus: Sequence[DeviceMemory]) -> list[GpuMemory]:
    return [GpuMemory(gpu.kind, gpu.usable_bytes, 0) for gpu in gpus]

"""The `spread` strategy: every GPU gets a share of the layers, the CPU gets the rest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from mrs.devices.device import DeviceMemory
from mrs.plan.placement.fill import fill
from mrs.plan.placement.placement import Demand, Placement, no_layer_warning, without_shared_cpu
from mrs.plan.placement.round_robin import GpuDemand, GpuMemory, estimate_gpu_layers, predict_fit


def spread(demand: Demand, devices: Sequence[DeviceMemory]) -> Placement:
    """Give each GPU a range of layers, as many as `estimate_gpu_layers` assigns to it.

    The estimate assigns layers one by one. If layers differ in size, a range of as many layers can
    be larger; layers that do not fit then move to the next GPU. With equal layers, more memory
    never places fewer layers on GPUs; with unequal layers, round robin does not guarantee that.
    The estimate reserves memory on each GPU. If a layer therefore finds no device, `fill` places
    all layers instead, and raises DoesNotFit if it cannot.
    """
    candidates = without_shared_cpu(devices)
    gpus = [device for device in candidates if device.kind != "cpu"]
    shares = _shares(demand, gpus)
    layers: list[tuple[int, int]] = []
    warnings: list[str] = []
    placed = due = 0
    for index, device in enumerate(candidates):
        is_cpu = device.kind == "cpu"
        due = demand.layer_count - placed if is_cpu else due + shares[index]
        free_bytes = device.usable_bytes - demand.fixed_bytes(first=not layers)
        count = min(due, demand.layers_that_fit(placed, free_bytes))
        if count:
            layers.append((index, count))
            placed += count
            due -= count
        elif placed < demand.layer_count:
            warnings.append(no_layer_warning(device))
    if placed < demand.layer_count:
        return fill(demand, devices)
    if len(layers) > 1:
        warnings += _one_gpu_warning(demand, gpus)
    return Placement(layers, warnings)


def _shares(demand: Demand, gpus: Sequence[DeviceMemory]) -> list[int]:
    """How many layers the estimate assigns to each GPU."""
    estimate = estimate_gpu_layers(_gpu_demand(demand), _gpu_memories(gpus))
    if not estimate.layers:
        return [0] * len(gpus)
    return (
        [int(n) for n in estimate.tensor_split.split(",")] if len(gpus) > 1 else [estimate.layers]
    )


def _one_gpu_warning(demand: Demand, gpus: Sequence[DeviceMemory]) -> list[str]:
    """The warning that one GPU fits the whole model; Ollama would then use only that one."""
    needed = _gpu_demand(demand)
    alone = (gpu.label for gpu in gpus if predict_fit(needed, _gpu_memories([gpu])).fits)
    return [
        f"{label} can hold the whole model: without --strategy spread no token would cross devices"
        for label in islice(alone, 1)
    ]


def _gpu_demand(demand: Demand) -> GpuDemand:
    """The demand in the form of the estimate.

    The KV cache counts with its layer; the output tensor is part of the projector.
    """
    return GpuDemand(
        layer_bytes=[w + kv for w, kv in zip(demand.layer_bytes, demand.kv_bytes, strict=True)],
        output_bytes=0,
        kv_bytes_total=0,
        graph_partial_bytes=demand.mapped_act_bytes,
        graph_full_bytes=demand.mapped_act_bytes,
        projector_bytes=demand.non_mapped_bytes,
        projector_graph_bytes=max(0, demand.non_mapped_act_bytes - demand.mapped_act_bytes),
        overhead_bytes=0,
    )


def _gpu_memories(gpus: Sequence[DeviceMemory]) -> list[GpuMemory]:
    return [GpuMemory(gpu.kind, gpu.usable_bytes, 0) for gpu in gpus]

"""Memory of each device under a placement, by use, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mrs.devices.device import Device
from mrs.devices.processor import cpu_threads
from mrs.plan.memory.kv_bytes import state_bytes
from mrs.plan.memory.overhead import (
    FRAGMENTATION,
    NOTHING,
    Estimate,
    heap_bytes,
    program_bytes,
    runtime_bytes,
)

if TYPE_CHECKING:
    from mrs.plan.memory.device_sizes import DeviceSizes, ModelSizes

#: Our formula is an upper bound of measured activations, by at most this fraction of them.
ACTIVATION_SLACK = 0.15


@dataclass(frozen=True)
class Correction:
    """Measured on this machine: ratio of real to predicted activations, runtime in bytes."""

    activation_ratio: float = 1.0
    runtime_bytes: int | None = None


@dataclass(frozen=True)
class MemoryBreakdown:
    """Memory of one device.

    runtime        the accelerator's driver, and the states of captured steps; on the CPU the
                   program itself, even without layers
    allocator      lost to gaps between allocated blocks
    reserve_bytes  left free, in addition to the runtime
    loading_bytes  peak while weights are loaded, before the cache is allocated
    draft          the draft model's memory, which comes in addition
    request_bytes  what the requests to a server may need on the host, without the prefix cache

    An accelerator must have the expected total. The CPU must have the upper bound, because a
    process that exceeds its memory is killed.
    """

    layers: int
    available_bytes: int
    weight_bytes: int
    kv_bytes: int
    activations: Estimate
    runtime: Estimate
    allocator: Estimate
    reserve_bytes: int
    loading_bytes: int
    is_cpu: bool = False
    draft: MemoryBreakdown | None = None
    request_bytes: int = 0

    @property
    def total(self) -> Estimate:
        """Peak memory, the draft model's included: while models run, or while they are loaded."""
        return self._own_total + self.draft_total

    @property
    def draft_total(self) -> Estimate:
        return NOTHING if self.draft is None else self.draft.total

    @property
    def _own_total(self) -> Estimate:
        stored = Estimate.exact(self.weight_bytes + self.kv_bytes)
        requests = Estimate(0, self.request_bytes, self.request_bytes)
        running = stored + self.activations + self.runtime + self.allocator + requests
        return running._replace(high=max(running.high, self.loading_bytes if self.is_cpu else 0))

    @property
    def is_used(self) -> bool:
        """Whether the device stores any part of the model."""
        return self.layers > 0 or self.weight_bytes > 0 or self.draft is not None

    @property
    def needed_bytes(self) -> int:
        """Memory that the device must have for the plan to fit."""
        total = self.total.high if self.is_cpu else self.total.expected
        return max(total, self.loading_bytes)

    @property
    def free_bytes(self) -> int:
        """Memory left after the total and the reserve; negative if it does not fit."""
        total = self.total.high if self.is_cpu else self.total.expected
        return self.available_bytes - total - self.reserve_bytes

    @property
    def missing_bytes(self) -> int:
        return max(0, self.needed_bytes - self.available_bytes)


def memory_breakdowns(
    sizes: ModelSizes,
    devices: Sequence[Device],
    layer_devices: Sequence[int],
    primary_device: int,
    corrections: Mapping[str, Correction],
    expert_devices: Mapping[int, int] | None = None,
) -> tuple[MemoryBreakdown, ...]:
    """The breakdown of every device; zeros if unused, but the host always has the program.

    `expert_devices` has the device of experts that are not on the device of their layer.
    """
    indices, apart = range(len(devices)), expert_devices or {}
    layers = [[n for n, device in enumerate(layer_devices) if device == index] for index in indices]
    guests = [[n for n, device in apart.items() if device == index] for index in indices]
    bounds = [
        _activation_bound(sizes.on(devices[i]), layers[i] + guests[i], i == primary_device)
        for i in indices
    ]
    on_cpu = [i for i in indices if devices[i].torch_device == "cpu"]
    in_heap = max((bounds[i] for i in on_cpu), default=0)
    cached = sum(sizes.kv_bytes[layer] for i in on_cpu for layer in layers[i])
    host = host_index(devices)
    breakdowns = []
    for index, device in enumerate(devices):
        if not layers[index] and not guests[index] and index not in (primary_device, host):
            breakdowns.append(_empty(device))
            continue
        correction = corrections.get(device.label)
        runtime = _runtime(device, correction) + _state_rows(sizes, device, len(layers[index]))
        allocator = _allocator(device, bounds[index])
        if index == host:
            runtime += _program(sizes, devices)
            allocator += heap_bytes(in_heap, cached)
        breakdowns.append(
            _breakdown(
                sizes.on(device),
                device,
                layers[index],
                _expert_bytes(sizes.on(device), layers[index], guests[index], apart),
                index == primary_device,
                _activations(bounds[index], correction),
                runtime,
                allocator,
            )
        )
    return tuple(breakdowns)


def _empty(device: Device) -> MemoryBreakdown:
    is_cpu = device.kind == "cpu"
    return MemoryBreakdown(0, device.available_bytes, 0, 0, NOTHING, NOTHING, NOTHING, 0, 0, is_cpu)


def host_index(devices: Sequence[Device]) -> int:
    """Index of the device with the program's memory: the CPU, or one that shares its memory."""
    shared = (index for index, device in enumerate(devices) if device.shares_host_memory)
    return next(shared, len(devices) - 1)


def _activation_bound(sizes: DeviceSizes, layers: Sequence[int], is_primary: bool) -> int:
    """Peak activations of a device with these layers."""
    if not layers and not is_primary:
        return 0
    largest = max((sizes.layer_act_bytes[layer] for layer in layers), default=0)
    if is_primary:
        largest = max(largest, sizes.head_act_bytes) + sizes.feature_bytes
    return largest + sizes.persistent_bytes


def _expert_bytes(
    sizes: DeviceSizes, layers: Sequence[int], guests: Sequence[int], apart: Mapping[int, int]
) -> int:
    """Weights of experts of other devices' layers, less those of own layers that are elsewhere."""
    experts = sizes.weights.expert_bytes
    return sum(experts[n] for n in guests) - sum(experts[n] for n in layers if n in apart)


def _breakdown(
    sizes: DeviceSizes,
    device: Device,
    layers: Sequence[int],
    more_bytes: int,
    is_primary: bool,
    activations: Estimate,
    runtime: Estimate,
    allocator: Estimate,
) -> MemoryBreakdown:
    is_cpu = device.kind == "cpu"
    weights = sum(sizes.layer_bytes[layer] for layer in layers) + more_bytes
    weights += sizes.non_mapped_bytes if is_primary else 0
    reserve = device.available_bytes - device.memory.usable_bytes
    scratch = sizes.weights.load_scratch_bytes if weights else 0
    return MemoryBreakdown(
        layers=len(layers),
        available_bytes=device.available_bytes,
        weight_bytes=weights,
        kv_bytes=sum(sizes.kv_bytes[layer] for layer in layers),
        activations=activations,
        runtime=runtime,
        allocator=allocator,
        reserve_bytes=max(0, reserve - runtime.expected),
        loading_bytes=weights + (runtime.high if is_cpu else runtime.expected) + scratch,
        is_cpu=is_cpu,
    )


def _activations(bound: int, correction: Correction | None) -> Estimate:
    """From the least that the bound allows up to the bound; corrected if there is a measurement."""
    low = int(bound / (1 + ACTIVATION_SLACK))
    if correction is None:
        return Estimate(low, bound, bound)
    expected = int(bound * correction.activation_ratio)
    return Estimate(min(low, expected), expected, max(bound, expected))


def _runtime(device: Device, correction: Correction | None) -> Estimate:
    estimate = runtime_bytes(device)
    if correction is None or correction.runtime_bytes is None:
        return estimate
    measured = correction.runtime_bytes
    return Estimate(min(estimate.low, measured), measured, max(estimate.high, measured))


def _state_rows(model: ModelSizes, device: Device, layers: int) -> Estimate:
    """States at the fixed addresses that captured decode steps read, one for each row of a batch.

    A sequence gives its own memory back when it moves into a row; but rows outlive sequences, and
    the first replay copies them. Steps are captured only if all layers are on one CUDA device.
    """
    all_layers = model.spec.layers
    if not device.is_cuda or layers < len(all_layers):
        return NOTHING
    rows_bytes = model.workload.batch * state_bytes(all_layers)
    return Estimate(0, rows_bytes, rows_bytes)


def _program(model: ModelSizes, devices: Sequence[Device]) -> Estimate:
    """Counts what a GPU needs even if it stays unused: then more memory of it is never worse."""
    has_cuda = any(device.is_cuda for device in devices)
    return program_bytes(model.spec.vocab_size, len(model.parameters), cpu_threads(), has_cuda)


def _allocator(device: Device, bound: int) -> Estimate:
    """Gaps in an accelerator's memory; activations of a CPU are in the heap."""
    return NOTHING if device.torch_device == "cpu" else Estimate(0, 0, int(bound * FRAGMENTATION))


def host_bytes(model: ModelSizes, devices: Sequence[Device]) -> int:
    """Most host memory of the process, without weights, caches and activations.

    A server has the least that its requests need, too.
    """
    host = devices[host_index(devices)]
    heap = heap_bytes(model.on(host).mapped_act_bytes, sum(model.kv_bytes))
    requests = 0 if model.budget is None else model.budget.least.total_bytes
    return _program(model, devices).high + heap.high + requests

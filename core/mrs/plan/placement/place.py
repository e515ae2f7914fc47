"""Choose the device of every layer: a strategy, or the layer map that was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mrs.devices.bandwidth import bandwidth_of
from mrs.devices.device import Device, DeviceMemory, placement_devices
from mrs.errors import DoesNotFit
from mrs.plan.cost import decoded_layer_bytes
from mrs.plan.memory.breakdown import Correction, host_bytes, host_index
from mrs.plan.memory.device_sizes import DeviceSizes, ModelSizes
from mrs.plan.placement.fastest import fastest
from mrs.plan.placement.fill import fill
from mrs.plan.placement.layer_map import parse_layer_map, place_by_hand
from mrs.plan.placement.placement import Demand, Placement
from mrs.plan.placement.spread import spread
from mrs.plan.placement.token_time import TokenReads
from mrs.request import RunRequest

_UNLIMITED_BYTES = 1 << 62


def place(
    request: RunRequest,
    sizes: ModelSizes,
    devices: Sequence[Device],
    corrections: Mapping[str, Correction],
) -> Placement:
    """The placement that is asked for, on `devices` (accelerators in order, the CPU last).

    A model that is too large is placed all the same, with what is left over on the last device:
    the account then says what is missing there. UsageError for a layer map that cannot be.
    """
    count = len(sizes.spec.layers)
    if request.layer_map is not None:
        memories = [device.memory for device in devices]
        return place_by_hand(parse_layer_map(request.layer_map), count, memories)
    candidates = _memories(sizes, devices)
    if not request.cpu_spill and candidates[0].kind != "cpu":
        candidates = [memory for memory in candidates if memory.kind != "cpu"]
    considered = devices[: len(candidates)]
    try:
        return _placed(request, sizes, considered, candidates, corrections)
    except DoesNotFit:
        last = replace(candidates[-1], available_bytes=_UNLIMITED_BYTES)
        request = replace(request, strategy="fill")
        return _placed(request, sizes, considered, [*candidates[:-1], last], corrections)


def charged_memory(
    sizes: ModelSizes, devices: Sequence[Device], corrections: Mapping[str, Correction]
) -> DeviceMemory:
    """The first device's memory as a strategy sees it."""
    first, held = devices[0], sizes.on(devices[0])
    return _charged(held, held, _memories(sizes, devices)[0], corrections.get(first.label))


def _memories(sizes: ModelSizes, devices: Sequence[Device]) -> list[DeviceMemory]:
    """What each device has for the model; without a CPU whose memory is an accelerator's."""
    memories = placement_devices(devices)
    if (host := host_index(devices)) < len(memories):
        memories[host] = _without_program(sizes, devices[host], memories[host])
    return memories


def _without_program(sizes: ModelSizes, host: Device, memory: DeviceMemory) -> DeviceMemory:
    """The host's memory less what the process takes of it wherever the layers are."""
    available = memory.available_bytes - host_bytes(sizes, host)
    return replace(memory, available_bytes=max(0, available))


def _placed(
    request: RunRequest,
    sizes: ModelSizes,
    devices: Sequence[Device],
    memories: Sequence[DeviceMemory],
    corrections: Mapping[str, Correction],
) -> Placement:
    """The strategy's placement, repeated without the devices that it left out at the start.

    A strategy charges only the device listed first for embedding and head. Where that one holds
    no layer they live on the next, which must then be charged.
    """
    placement = _strategy(request, sizes, devices, memories, corrections)
    first = placement.first_device
    if first == 0 or request.strategy == "fastest":
        return placement
    rest = _placed(request, sizes, devices[first:], memories[first:], corrections)
    layers = [(index + first, layers) for index, layers in rest.layers]
    return Placement(layers, placement.warnings[:first] + rest.warnings)


def _strategy(
    request: RunRequest,
    model: ModelSizes,
    devices: Sequence[Device],
    memories: Sequence[DeviceMemory],
    corrections: Mapping[str, Correction],
) -> Placement:
    sizes = model.on(devices[0])
    charged = [
        _charged(sizes, model.on(device), memory, corrections.get(device.label))
        for device, memory in zip(devices, memories, strict=True)
    ]
    demand = Demand(
        layer_bytes=sizes.layer_bytes,
        non_mapped_bytes=sizes.non_mapped_bytes,
        kv_bytes=sizes.kv_bytes,
        mapped_act_bytes=sizes.mapped_act_bytes,
        non_mapped_act_bytes=sizes.non_mapped_act_bytes,
    )
    if request.strategy == "fastest":
        bandwidths = [bandwidth_of(device) for device in devices]
        return fastest(demand, charged, bandwidths, token_reads(model, sizes))
    return (spread if request.strategy == "spread" else fill)(demand, charged)


def token_reads(model: ModelSizes, sizes: DeviceSizes) -> TokenReads:
    """What one token reads: of the non-mapped part the head alone, of a batch one cache."""
    head = sizes.storage["embedding.weight" if model.spec.tied_head else "head.weight"]
    weights = decoded_layer_bytes(model.parameters, model.spec, sizes.storage)
    layers = [w + kv for w, kv in zip(weights, model.sequence_kv_bytes, strict=True)]
    return TokenReads(layers, head.size_bytes)


def _charged(
    assumed: DeviceSizes, real: DeviceSizes, memory: DeviceMemory, correction: Correction | None
) -> DeviceMemory:
    """The memory as a strategy has to see it that counts with the first device's sizes.

    What the CPU stores in other sizes is expressed in those of the first device: the CPU is the
    last one, so it holds a run of the last layers, and the longest that fits is known. A
    correction of activations makes the memory smaller or larger.
    """
    available = memory.available_bytes
    if correction is not None:
        available -= int((correction.activation_ratio - 1) * real.mapped_act_bytes)
    if real is not assumed and available != _UNLIMITED_BYTES:
        room, equivalent = available - real.mapped_act_bytes, 0
        for layer in reversed(range(len(real.layer_bytes))):
            room -= real.layer_bytes[layer] + real.kv_bytes[layer]
            if room < 0:
                break
            equivalent += assumed.layer_bytes[layer] + assumed.kv_bytes[layer]
        available = equivalent + assumed.mapped_act_bytes if equivalent else 0
    return replace(memory, available_bytes=max(0, available))

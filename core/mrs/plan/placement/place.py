"""Choose the device of every layer, by a strategy or by the given layer map."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from mrs.devices.bandwidth import bandwidth_of
from mrs.devices.device import Device, DeviceMemory, placement_devices
from mrs.errors import DoesNotFit, UsageError
from mrs.plan.cost import decoded_layer_bytes
from mrs.plan.largest import largest
from mrs.plan.memory.breakdown import Correction, host_bytes, host_index
from mrs.plan.placement.fill import fill
from mrs.plan.placement.layer_map import manual_placement, parse_layer_map
from mrs.plan.placement.pins import Pins, find_pins
from mrs.plan.placement.placement import Demand, Placement
from mrs.request import RunRequest

if TYPE_CHECKING:
    from mrs.plan.memory.device_sizes import DeviceSizes, ModelSizes
    from mrs.plan.placement.token_time import TokenReads

    #: The tokens a second of a reply that are expected of a placement.
    DecodeRate = Callable[[ModelSizes, Placement, Sequence[Device]], float]

#: More than any model needs with any number of sequences.
_UNLIMITED_BYTES = 1 << 100


def place(
    request: RunRequest,
    sizes: ModelSizes,
    devices: Sequence[Device],
    corrections: Mapping[str, Correction],
    decode_rate: DecodeRate,
) -> Placement:
    """The requested placement on `devices` (accelerators in order, the CPU last).

    Of a mixture that accelerators have no room for, experts go to the CPU before whole layers do,
    where `decode_rate` says that this is faster.
    If the model is too large, the remaining layers are placed on the last device, and its memory
    breakdown shows the missing bytes. UsageError for an impossible layer map.
    """
    count = len(sizes.spec.layers)
    pins = find_pins(request.topology, sizes.parameters, count, devices)
    if request.layer_map is not None:
        if pins.layers:
            raise UsageError(
                "the topology and -n both give devices to layers",
                hint="give devices in one of them",
            )
        memories = [device.memory for device in devices]
        manual = manual_placement(parse_layer_map(request.layer_map), count, memories)
        return pins.applied(manual, devices)
    if len(pins.layers) == count:
        return pins.applied(Placement([(0, count)]), devices)

    def placed(pins: Pins) -> Placement:
        return _by_strategy(request, sizes, devices, corrections, pins)

    placement = placed(pins)
    if pins or not request.cpu_spill or not _is_spilled(placement, devices):
        return placement
    return _with_experts_apart(
        placed, placement, sizes, devices, lambda each: decode_rate(sizes, each, devices)
    )


def _with_experts_apart(
    placed: Callable[[Pins], Placement],
    whole: Placement,
    sizes: ModelSizes,
    devices: Sequence[Device],
    rate: Callable[[Placement], float],
) -> Placement:
    """The placement with experts on the CPU in place of whole layers, if that is faster.

    A token reads few of the experts and all of the rest. So accelerators have room for the rest and
    for the caches of all layers first, and then for the experts of as many of the last layers as
    fit; those of the first ones go to the CPU.
    """
    routings = enumerate(layer.feed_forward.routing for layer in sizes.spec.layers)
    mixtures = [layer for layer, routing in routings if routing is not None]
    if not mixtures:
        return whole
    host = host_index(devices)

    @cache
    def apart(kept: int) -> Placement:
        return placed(Pins(experts=dict.fromkeys(mixtures[: len(mixtures) - kept], host)))

    def has_room(others: int) -> bool:
        return not _is_spilled(apart(others - 1), devices)

    others = largest(has_room, 1, len(mixtures)) or 1
    placement = apart(others - 1)
    return max(whole, placement, key=rate)


def _is_spilled(placement: Placement, devices: Sequence[Device]) -> bool:
    """Whether layers are on the CPU beside accelerators with memory of their own."""
    used = {devices[index].kind for index, count in placement.layers if count}
    return devices[0].kind != "cpu" and "cpu" in used


def _by_strategy(
    request: RunRequest,
    sizes: ModelSizes,
    devices: Sequence[Device],
    corrections: Mapping[str, Correction],
    pins: Pins,
) -> Placement:
    """The strategy's placement of what is not pinned, with the pins."""
    candidates = _memories(sizes, devices)
    if pins:
        candidates = _without_pinned(sizes, devices, candidates, pins)
    if not request.cpu_spill and candidates[0].kind != "cpu":
        candidates = [memory for memory in candidates if memory.kind != "cpu"]
    considered = devices[: len(candidates)]
    try:
        placement = _placed(request, sizes, considered, candidates, corrections, pins)
    except DoesNotFit:
        last = replace(candidates[-1], available_bytes=_UNLIMITED_BYTES)
        request = replace(request, strategy="fill")
        memories = [*candidates[:-1], last]
        placement = _placed(request, sizes, considered, memories, corrections, pins)
    return pins.applied(placement, devices)


def _without_pinned(
    sizes: ModelSizes, devices: Sequence[Device], memories: Sequence[DeviceMemory], pins: Pins
) -> list[DeviceMemory]:
    """The memories minus what a topology puts there, weights and caches."""
    pinned_bytes = [0] * len(devices)
    for layer, index in pins.layers.items():
        on = sizes.on(devices[index])
        experts = sizes.on(devices[pins.experts.get(layer, index)])
        pinned_bytes[index] += on.layer_bytes[layer] - on.weights.expert_bytes[layer]
        pinned_bytes[index] += on.kv_bytes[layer]
        pinned_bytes[pins.experts.get(layer, index)] += experts.weights.expert_bytes[layer]
    for layer, index in pins.experts.items():
        if layer not in pins.layers:
            pinned_bytes[index] += sizes.on(devices[index]).weights.expert_bytes[layer]
    return [
        replace(memory, available_bytes=max(0, memory.available_bytes - size_bytes))
        for memory, size_bytes in zip(memories, pinned_bytes, strict=False)
    ]


def charged_memory(
    sizes: ModelSizes, devices: Sequence[Device], corrections: Mapping[str, Correction]
) -> DeviceMemory:
    """The memory of the first device for a strategy."""
    first, on_first = devices[0], sizes.on(devices[0])
    return _charged(on_first, on_first, _memories(sizes, devices)[0], corrections.get(first.label))


def _memories(sizes: ModelSizes, devices: Sequence[Device]) -> list[DeviceMemory]:
    """Memory of each device for the model, without a CPU that shares an accelerator's memory.

    The host's has no room for what the process needs without any layer.
    """
    memories = placement_devices(devices)
    if (host := host_index(devices)) < len(memories):
        available = memories[host].available_bytes - host_bytes(sizes, devices)
        memories[host] = replace(memories[host], available_bytes=max(0, available))
    return memories


def _placed(
    request: RunRequest,
    sizes: ModelSizes,
    devices: Sequence[Device],
    memories: Sequence[DeviceMemory],
    corrections: Mapping[str, Correction],
    pins: Pins,
) -> Placement:
    """The strategy's placement; repeated without the first devices if they got no layer.

    A strategy charges embedding and head only to the first device of the list. If that device gets
    no layer, they are stored on the next one, which must then be charged.
    """
    placement = _strategy(request, sizes, devices, memories, corrections, pins)
    first = placement.first_device
    if first == 0 or request.strategy == "fastest":
        return placement
    rest = _placed(request, sizes, devices[first:], memories[first:], corrections, pins)
    layers = [(index + first, layers) for index, layers in rest.layers]
    return Placement(layers, placement.warnings[:first] + rest.warnings)


def _strategy(
    request: RunRequest,
    model: ModelSizes,
    devices: Sequence[Device],
    memories: Sequence[DeviceMemory],
    corrections: Mapping[str, Correction],
    pins: Pins,
) -> Placement:
    reduced: dict[int, DeviceSizes] = {}

    def on(device: Device) -> DeviceSizes:
        """The sizes of what is not pinned; the same object for devices with the same sizes."""
        whole = model.on(device)
        if not pins:
            return whole
        if id(whole) not in reduced:
            reduced[id(whole)] = whole.without(pins.layers, pins.experts)
        return reduced[id(whole)]

    sizes = on(devices[0])
    charged = [
        _charged(sizes, on(device), memory, corrections.get(device.label))
        for device, memory in zip(devices, memories, strict=True)
    ]
    demand = Demand(
        layer_bytes=sizes.layer_bytes,
        non_mapped_bytes=sizes.non_mapped_bytes,
        kv_bytes=sizes.kv_bytes,
        mapped_act_bytes=sizes.mapped_act_bytes,
        non_mapped_act_bytes=sizes.non_mapped_act_bytes,
    )
    if request.strategy == "spread":
        from mrs.plan.placement.spread import spread

        return spread(demand, charged)
    if request.strategy == "fastest":
        from mrs.plan.placement.fastest import fastest

        bandwidths = [bandwidth_of(device) for device in devices]
        return fastest(demand, charged, bandwidths, token_reads(model, sizes, pins))
    return fill(demand, charged)


def token_reads(model: ModelSizes, sizes: DeviceSizes, pins: Pins) -> TokenReads:
    """Bytes that one token reads: weights, the cache of one sequence, and the head."""
    from mrs.plan.placement.token_time import TokenReads

    head = sizes.storage[model.spec.head_weight]
    weights = decoded_layer_bytes(model.parameters, model.spec, sizes.storage, pins.experts)
    layers = [w + kv for w, kv in zip(weights, model.sequence_kv_bytes, strict=True)]
    return TokenReads(layers, head.size_bytes)


def _charged(
    assumed: DeviceSizes, real: DeviceSizes, memory: DeviceMemory, correction: Correction | None
) -> DeviceMemory:
    """The memory of a device, converted for a strategy that uses the first device's sizes.

    The CPU may store weights in other sizes. It is the last device, so it stores the last layers:
    its memory becomes the bytes that the most layers that fit would have on the first device. A
    correction of activations makes the memory smaller or larger.
    """
    available = memory.available_bytes
    if correction is not None:
        available -= int((correction.activation_ratio - 1) * real.mapped_act_bytes)
    if real is not assumed and available != _UNLIMITED_BYTES:
        free_bytes, equivalent = available - real.mapped_act_bytes, 0
        for layer in reversed(range(len(real.layer_bytes))):
            free_bytes -= real.layer_bytes[layer] + real.kv_bytes[layer]
            if free_bytes < 0:
                break
            equivalent += assumed.layer_bytes[layer] + assumed.kv_bytes[layer]
        available = equivalent + assumed.mapped_act_bytes if equivalent else 0
    return replace(memory, available_bytes=max(0, available))

"""What each device holds under a placement, term by term, and whether it can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mrs.plan.device import Device
from mrs.plan.overhead import NOTHING, Estimate, runtime_bytes
from mrs.plan.terms import ModelSizes

#: Our formula bounds the measured activations from above, by at most this part of them.
ACTIVATION_SLACK = 0.15
#: An accelerator's allocator rounds blocks up and cannot use every gap between them.
FRAGMENTATION = 0.25


@dataclass(frozen=True)
class Correction:
    """What was measured on this machine: activations over predicted ones, runtime in bytes."""

    activation_ratio: float = 1.0
    runtime_bytes: int | None = None


@dataclass(frozen=True)
class DeviceTerms:
    """The bytes of one device. `reserve_bytes` are kept free beside the runtime's.

    `loading_bytes` is the most that is held while weights are loaded, before there is a cache.
    """

    layers: int
    available_bytes: int
    weight_bytes: int
    kv_bytes: int
    activations: Estimate
    runtime: Estimate
    reserve_bytes: int
    loading_bytes: int

    @property
    def total(self) -> Estimate:
        held = Estimate.exact(self.weight_bytes + self.kv_bytes)
        return held + self.activations + self.runtime

    @property
    def needed_bytes(self) -> int:
        """What must be there for the plan to be kept."""
        return max(self.total.expected, self.loading_bytes)

    @property
    def free_bytes(self) -> int:
        """What is left beside everything and the reserve; negative if something is missing."""
        return self.available_bytes - self.total.expected - self.reserve_bytes

    @property
    def missing_bytes(self) -> int:
        return max(0, self.needed_bytes - self.available_bytes)


def device_terms(
    sizes: ModelSizes,
    devices: Sequence[Device],
    layer_devices: Sequence[int],
    home: int,
    corrections: Mapping[str, Correction],
) -> tuple[DeviceTerms, ...]:
    """The terms of every device; those that hold nothing have zeros."""
    return tuple(
        _terms(sizes, device, index, layer_devices, home, corrections.get(device.label))
        for index, device in enumerate(devices)
    )


def _terms(
    model: ModelSizes,
    device: Device,
    index: int,
    layer_devices: Sequence[int],
    home: int,
    correction: Correction | None,
) -> DeviceTerms:
    sizes = model.on(device)
    mine = [layer for layer, place in enumerate(layer_devices) if place == index]
    if not mine and index != home:
        return DeviceTerms(0, device.available_bytes, 0, 0, NOTHING, NOTHING, 0, 0)
    weights = sum(sizes.layer_bytes[layer] for layer in mine)
    activations = max((sizes.layer_act_bytes[layer] for layer in mine), default=0)
    if index == home:
        weights += sizes.non_mapped_bytes
        activations = max(activations, sizes.head_act_bytes) + sizes.feature_bytes
    runtime = _runtime(device, correction)
    reserve = device.available_bytes - device.memory.usable_bytes
    return DeviceTerms(
        layers=len(mine),
        available_bytes=device.available_bytes,
        weight_bytes=weights,
        kv_bytes=sum(sizes.kv_bytes[layer] for layer in mine),
        activations=_activations(activations + sizes.standing_bytes, device, correction),
        runtime=runtime,
        reserve_bytes=max(0, reserve - runtime.expected),
        loading_bytes=weights + runtime.expected + sizes.kept.load_scratch_bytes,
    )


def _activations(bound: int, device: Device, correction: Correction | None) -> Estimate:
    """Between the least that the bound can mean and what an allocator makes of it."""
    low = int(bound / (1 + ACTIVATION_SLACK))
    high = bound if device.torch_device == "cpu" else int(bound * (1 + FRAGMENTATION))
    if correction is None:
        return Estimate(low, bound, high)
    expected = int(bound * correction.activation_ratio)
    return Estimate(min(low, expected), expected, max(high, expected))


def _runtime(device: Device, correction: Correction | None) -> Estimate:
    estimate = runtime_bytes(device)
    if correction is None or correction.runtime_bytes is None:
        return estimate
    measured = correction.runtime_bytes
    return Estimate(min(estimate.low, measured), measured, max(estimate.high, measured))

"""Input and result of every placement strategy.

All sizes are bytes. A device list has the accelerators in the order of the layers and the CPU last.
Parameters of no layer (embeddings, final norm, head, vision tower) are *non-mapped* and are stored
on the first device that has layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mrs.devices.device import DeviceMemory
from mrs.units import human_bytes


@dataclass(frozen=True)
class Placement:
    """Consecutive layers on devices.

    `layers` has `(device_index, layer_count)` in the order of the layers; the index is into the
    strategy's list of devices. `warnings` are lines for the user. `experts` has the device index
    of the experts of each layer that are on another device than their layer. `on_disk` are the
    layers that stay on disk, with memory for `expert_slots` of their experts, and `tables_on_disk`
    the matrices that are read by rows; None: the plan is to choose them.
    """

    layers: list[tuple[int, int]]
    warnings: list[str] = field(default_factory=list)
    experts: Mapping[int, int] = field(default_factory=dict)
    on_disk: Sequence[int] | None = None
    expert_slots: int = 0
    tables_on_disk: Sequence[str] = ()

    @property
    def layer_devices(self) -> list[int]:
        """The device index of each layer."""
        return [device for device, count in self.layers for _ in range(count)]

    @property
    def first_device(self) -> int:
        """The index of the device with the non-mapped parameters."""
        return next((device for device, count in self.layers if count), self.layers[0][0])


@dataclass(frozen=True)
class Demand:
    """The memory that a model needs.

    layer_bytes, kv_bytes   weights and KV cache, one entry per layer
    non_mapped_bytes        weights of embedding, norm, head and vision tower
    mapped_act_bytes        activations of a layer
    non_mapped_act_bytes    activations of the non-mapped part; never at the same time as those of a
                            layer, so the first device reserves the larger of the two
    """

    layer_bytes: Sequence[int]
    non_mapped_bytes: int
    kv_bytes: Sequence[int]
    mapped_act_bytes: int
    non_mapped_act_bytes: int

    @property
    def layer_count(self) -> int:
        return len(self.layer_bytes)

    @property
    def weight_bytes(self) -> int:
        return sum(self.layer_bytes) + self.non_mapped_bytes

    def activation_bytes(self, *, first: bool) -> int:
        """Bytes that a device reserves for activations."""
        if first:
            return max(self.mapped_act_bytes, self.non_mapped_act_bytes)
        return self.mapped_act_bytes

    def fixed_bytes(self, *, first: bool) -> int:
        """Bytes that a device needs in addition to its layers."""
        return self.activation_bytes(first=first) + (self.non_mapped_bytes if first else 0)

    def layers_that_fit(self, start: int, free_bytes: int) -> int:
        """How many layers from `start` on fit in `free_bytes` with their KV cache."""
        count = 0
        for weights, kv in zip(self.layer_bytes[start:], self.kv_bytes[start:], strict=True):
            free_bytes -= weights + kv
            if free_bytes < 0:
                break
            count += 1
        return count


def without_shared_cpu(devices: Sequence[DeviceMemory]) -> list[DeviceMemory]:
    """The devices, without the CPU if it shares the accelerator's memory (unified memory)."""
    if any(device.kind == "metal" for device in devices):
        return [device for device in devices if device.kind != "cpu"]
    return list(devices)


def no_layer_warning(device: DeviceMemory) -> str:
    memory = human_bytes(device.available_bytes)
    return f"{device.label} can fit 0 layers: one layer and its activations exceed its {memory}"

"""What a placement is made from and what it says; the vocabulary of every strategy.

All sizes are bytes. A device list names accelerators in the order in which layers visit them and
the CPU last. What has no layer number (embeddings, final norm, head, vision tower) is the
*non-mapped* part and lives on the first device that holds layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mrs.devices.device import DeviceMemory
from mrs.units import human_bytes


@dataclass(frozen=True)
class Placement:
    """Consecutive layers on devices.

    `layers` lists `(device_index, layer_count)` in the order of the layers; the index is that of
    the device list which the strategy was given. `warnings` are lines for a person.
    """

    layers: list[tuple[int, int]]
    warnings: list[str] = field(default_factory=list)

    @property
    def layer_devices(self) -> list[int]:
        """The device index of each layer."""
        return [device for device, count in self.layers for _ in range(count)]

    @property
    def first_device(self) -> int:
        """The index of the device that holds the non-mapped part."""
        return next((device for device, count in self.layers if count), self.layers[0][0])


@dataclass(frozen=True)
class Demand:
    """What a model asks of its devices.

    `layer_bytes` and `kv_bytes` have one entry a layer. `mapped_act_bytes` are the activations
    of a layer, `non_mapped_act_bytes` those of the non-mapped part; they never live at once, so
    the first device reserves the larger of the two.
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
        """What a device keeps free for activations."""
        if first:
            return max(self.mapped_act_bytes, self.non_mapped_act_bytes)
        return self.mapped_act_bytes

    def fixed_bytes(self, *, first: bool) -> int:
        """What a device needs before its first layer."""
        return self.activation_bytes(first=first) + (self.non_mapped_bytes if first else 0)

    def layers_that_fit(self, start: int, room_bytes: int) -> int:
        """How many layers from `start` on, with their KV, fit into that room."""
        count = 0
        for weights, kv in zip(self.layer_bytes[start:], self.kv_bytes[start:], strict=True):
            room_bytes -= weights + kv
            if room_bytes < 0:
                break
            count += 1
        return count


def without_shared_cpu(devices: Sequence[DeviceMemory]) -> list[DeviceMemory]:
    """The devices without a CPU whose memory is an accelerator's own (unified memory)."""
    if any(device.kind == "metal" for device in devices):
        return [device for device in devices if device.kind != "cpu"]
    return list(devices)


def no_layer_warning(device: DeviceMemory) -> str:
    memory = human_bytes(device.available_bytes)
    return f"{device.label} can fit 0 layers: one, with what goes beside it, exceeds its {memory}"

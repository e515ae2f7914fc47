"""A device that layers can live on, real, logical or hypothetical."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mrs.units import MIB

DeviceKind = Literal["cuda", "metal", "cpu"]
BandwidthSource = Literal["given", "measured", "published", "assumed"]
#: The name of a device that a person describes by its memory alone.
HYPOTHETICAL = "hypothetical"
RESERVE_FRACTION = 0.02
MIN_RESERVE_BYTES = 512 * MIB


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of a device, for placement strategies; `kind` is `cuda`, `metal` or `cpu`."""

    kind: str
    ordinal: int
    available_bytes: int

    @property
    def label(self) -> str:
        return "cpu" if self.kind == "cpu" else f"{self.kind}:{self.ordinal}"

    @property
    def usable_bytes(self) -> int:
        """Available bytes less the reserve: 2 % and at least 512 MiB, none on the CPU."""
        if self.kind == "cpu":
            return self.available_bytes
        reserve = max(int(self.available_bytes * RESERVE_FRACTION), MIN_RESERVE_BYTES)
        return max(0, self.available_bytes - reserve)


@dataclass(frozen=True)
class Device:
    """One device.

    `torch_device` is the device of its tensors: a logical accelerator has the kind `cuda` but its
    tensors are on `cpu`. `with_bandwidth` sets `bandwidth_bytes_per_s`, which is None before.
    `shares_host_memory` marks an accelerator that uses the host's memory. A card of NVIDIA's has a
    `uuid`.
    """

    kind: DeviceKind
    ordinal: int
    name: str
    total_bytes: int
    available_bytes: int
    torch_device: str
    bandwidth_bytes_per_s: float | None = None
    bandwidth_source: BandwidthSource | None = None
    shares_host_memory: bool = False
    uuid: str = ""

    @property
    def label(self) -> str:
        """`cuda:0`, `metal:0` or `cpu`."""
        return self.memory.label

    @property
    def is_hypothetical(self) -> bool:
        """Whether it is not of this machine: a person has described it."""
        return self.name.endswith(HYPOTHETICAL)

    @property
    def is_cuda(self) -> bool:
        """Whether its tensors are on a GPU of CUDA's or ROCm's."""
        return self.torch_device.startswith("cuda")

    @property
    def memory(self) -> DeviceMemory:
        return DeviceMemory(self.kind, self.ordinal, self.available_bytes)


def placement_devices(devices: Sequence[Device]) -> list[DeviceMemory]:
    """The devices in the form that placement strategies take.

    If an accelerator shares the host's memory, the CPU is left out so that no byte counts twice.
    The CPU is the last device, so the indices are those of `devices`.
    """
    shared = any(device.shares_host_memory for device in devices)
    return [device.memory for device in devices if not (shared and device.kind == "cpu")]


def without_reserved(devices: Sequence[Device], reserved_bytes: Mapping[str, int]) -> list[Device]:
    """The devices, whose available memory lacks the bytes reserved by their labels."""
    return [
        replace(
            device,
            available_bytes=min(
                max(0, device.available_bytes - reserved_bytes.get(device.label, 0)),
                device.total_bytes,
            ),
        )
        for device in devices
    ]

"""What a device's runtime takes for itself before any tensor is there."""

from __future__ import annotations

from typing import NamedTuple

from mrs.plan.device import Device
from mrs.units import MIB


class Estimate(NamedTuple):
    """Bytes: at least, most likely, and at most."""

    low: int
    expected: int
    high: int

    @classmethod
    def exact(cls, size_bytes: int) -> Estimate:
        return cls(size_bytes, size_bytes, size_bytes)

    def __add__(self, other: object) -> Estimate:
        """Term by term, not as tuples are joined."""
        if not isinstance(other, Estimate):
            return NotImplemented
        return Estimate(*(a + b for a, b in zip(self, other, strict=True)))


NOTHING = Estimate(0, 0, 0)

#: A CUDA context with the kernels of one model: 107 to 555 MiB are reported over many cards, and
#: the matrix library's workspace adds 8 MiB, or 32 on the largest ones.
CUDA_CONTEXT = Estimate(107 * MIB + 8 * MIB, 400 * MIB, 555 * MIB + 32 * MIB)
#: Metal keeps command buffers and compiled kernels; nothing was measured, so the bound is wide.
METAL_RUNTIME = Estimate(0, 64 * MIB, 256 * MIB)


def runtime_bytes(device: Device) -> Estimate:
    """A CPU, and a logical device that stands for it, need nothing beside the program itself."""
    if device.torch_device == "cpu":
        return NOTHING
    return METAL_RUNTIME if device.kind == "metal" else CUDA_CONTEXT

"""The `fill` strategy: put as many layers as fit on each device, one device after another.

The rules are those of mistral.rs' automatic device mapping (version 0.8.1).
"""

from __future__ import annotations

from collections.abc import Sequence

from mrs.devices.device import DeviceMemory
from mrs.errors import DoesNotFit
from mrs.plan.placement.placement import Demand, Placement, no_layer_warning, without_shared_cpu
from mrs.units import human_bytes


def fill(demand: Demand, devices: Sequence[DeviceMemory]) -> Placement:
    """Place layers in order and fill each device before the next one.

    A device gets all remaining layers if they fit at once, otherwise the longest range that fits.
    A device that fits no layer is skipped with a warning. Only the first device of the list is
    charged for the non-mapped weights. On unified memory (`metal`) the CPU of the list is ignored,
    because it shares the accelerator's memory. Every layer must have at least one byte.

    Raises DoesNotFit with the weight bytes that fit on no device.
    """
    candidates = without_shared_cpu(devices)
    layers: list[tuple[int, int]] = []
    warnings: list[str] = []
    placed, remaining_bytes = 0, demand.weight_bytes
    for index, device in enumerate(candidates):
        if remaining_bytes <= 0:
            break
        fit = _fit(demand, device, placed, remaining_bytes, first=index == 0)
        if fit is None:
            warnings.append(no_layer_warning(device))
            continue
        count, taken_bytes = fit
        layers.append((index, count))
        placed += count
        remaining_bytes -= taken_bytes
    if remaining_bytes > 0:
        raise _does_not_fit(candidates, remaining_bytes)
    return Placement(layers, warnings)


def _fit(
    demand: Demand, device: DeviceMemory, placed: int, remaining_bytes: int, *, first: bool
) -> tuple[int, int] | None:
    """Layers that the device gets and their weight bytes; None if it fits no layer."""
    capacity = device.usable_bytes
    whole = remaining_bytes + demand.activation_bytes(first=first) + sum(demand.kv_bytes[placed:])
    if whole <= capacity:
        return demand.layer_count - placed, remaining_bytes
    count = demand.layers_that_fit(placed, capacity - demand.fixed_bytes(first=first))
    if not count:
        return None
    weights = sum(demand.layer_bytes[placed : placed + count])
    return count, weights + (demand.non_mapped_bytes if first else 0)


def _does_not_fit(devices: Sequence[DeviceMemory], missing_bytes: int) -> DoesNotFit:
    listed = ", ".join(f"{d.label} {human_bytes(d.available_bytes)}" for d in devices)
    return DoesNotFit(
        f"the model exceeds the devices by {human_bytes(missing_bytes)}",
        missing_bytes=missing_bytes,
        where=listed or "no devices",
        hint="lower --max-seq-len or --max-batch-size, or pick a smaller --isq",
    )

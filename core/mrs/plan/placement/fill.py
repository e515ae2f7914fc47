"""The `fill` strategy: fill each device in turn with as many layers as it holds.

The rules are those of mistral.rs' automatic device mapping (version 0.8.1).
"""

from __future__ import annotations

from collections.abc import Sequence

from mrs.devices.device import DeviceMemory
from mrs.errors import DoesNotFit
from mrs.plan.placement.placement import Demand, Placement, no_layer_warning, without_shared_cpu
from mrs.units import human_bytes


def auto_map(
    *,
    layer_bytes: Sequence[int],
    non_mapped_bytes: int,
    kv_bytes_per_layer: int | Sequence[int],
    mapped_act_bytes: int,
    non_mapped_act_bytes: int,
    devices: Sequence[DeviceMemory],
) -> Placement:
    """Layers on devices, in order, each device filled before the next.

    A device takes everything that is left if all of it fits at once, else the longest run of
    layers that fits; a device that fits none is skipped with a warning. Only the device listed
    first is charged for the non-mapped weights. On unified memory (`metal`) a listed CPU is left
    out, because its bytes are the accelerator's. Layers have at least one byte.

    Raises DoesNotFit with the weight bytes that found no device.
    """
    demand = Demand.of(
        layer_bytes, non_mapped_bytes, kv_bytes_per_layer, mapped_act_bytes, non_mapped_act_bytes
    )
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
    """How many layers the device takes and their weight bytes; None if it holds none."""
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

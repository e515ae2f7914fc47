"""What a model asks of devices, from keyword arguments as tests of strategies spell them."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.devices.device import DeviceMemory
from mrs.plan.placement.placement import Demand


def demand_and_devices(
    *,
    layer_bytes: Sequence[int],
    non_mapped_bytes: int,
    kv_bytes_per_layer: int | Sequence[int],
    mapped_act_bytes: int,
    non_mapped_act_bytes: int,
    devices: Sequence[DeviceMemory],
) -> tuple[Demand, Sequence[DeviceMemory]]:
    """The first two arguments of every strategy; one KV size stands for that of every layer."""
    if isinstance(kv_bytes_per_layer, int):
        kv_bytes_per_layer = [kv_bytes_per_layer] * len(layer_bytes)
    demand = Demand(
        layer_bytes, non_mapped_bytes, kv_bytes_per_layer, mapped_act_bytes, non_mapped_act_bytes
    )
    return demand, devices

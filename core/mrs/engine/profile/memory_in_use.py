"""The memory that this process uses now."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from mrs.devices.host_memory import host_memory
from mrs.events import DeviceMemoryUsage


def device_memory_usage(torch_devices: Iterable[str]) -> list[DeviceMemoryUsage]:
    """One entry for each different torch device, in order."""
    return [_usage(torch.device(name)) for name in dict.fromkeys(torch_devices)]


def _usage(device: torch.device) -> DeviceMemoryUsage:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return DeviceMemoryUsage(str(device), torch.cuda.memory_reserved(device), free)
    available = host_memory().available_bytes
    if device.type == "mps":
        return DeviceMemoryUsage(str(device), torch.mps.driver_allocated_memory(), available)
    import psutil

    return DeviceMemoryUsage(str(device), psutil.Process().memory_info().rss, available)

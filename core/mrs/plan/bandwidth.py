"""How fast a device reads its own memory: given, measured once, published, or assumed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mrs.plan.device import Device, DeviceKind
from mrs.plan.gpu_bandwidths import published_bandwidth
from mrs.plan.remembered import cache_file as remembered_file
from mrs.plan.remembered import device_key, read_entries, write_entries

FILE_NAME = "bandwidth.json"

#: Low ends of what is sold, for devices that nothing else is known of.
ASSUMED_BYTES_PER_S: dict[DeviceKind, float] = {"cuda": 200e9, "metal": 68e9, "cpu": 20e9}

MEASURED_BYTES = 256 * 1024**2
PASSES = 3


def with_bandwidth(
    devices: Sequence[Device], *, measure: bool = False, cache_file: Path | None = None
) -> list[Device]:
    """The devices with a bandwidth each, and where it is from.

    In this order: given, remembered in `cache_file` (the platform's cache folder unless named),
    measured now if `measure` says so and it is the CPU, published for that name, assumed. A GPU
    is measured by whoever has loaded its library and tells `remember_bandwidth`.
    """
    path = cache_file or remembered_file(FILE_NAME)
    known = _read(path)
    return [_with_bandwidth(device, known, path, measure=measure) for device in devices]


def bandwidth_of(device: Device) -> float:
    """Bytes a second: the device's own figure, or the assumed one of its kind."""
    kind: DeviceKind = "cpu" if device.torch_device == "cpu" else device.kind
    return device.bandwidth_bytes_per_s or ASSUMED_BYTES_PER_S[kind]


def remember_bandwidth(device: Device, bytes_per_s: float, cache_file: Path | None = None) -> None:
    """Keep a measured bandwidth for later plans; a folder that cannot be written is no error."""
    path = cache_file or remembered_file(FILE_NAME)
    known = {**_read(path), device_key(device): bytes_per_s}
    write_entries(path, known)


def measure_host_bandwidth(size_bytes: int = MEASURED_BYTES) -> float:
    """Bytes a second that all cores together read from memory: the best of three passes.

    The buffer exceeds the caches; numpy's reductions run without the interpreter's lock and
    are bound by memory. Takes about half a second.
    """
    from concurrent.futures import ThreadPoolExecutor
    from time import perf_counter

    import numpy as np

    threads = os.cpu_count() or 1
    parts = np.array_split(np.ones(size_bytes // 8, dtype=np.int64), 4 * threads)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(PASSES):
            start = perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))
            best = min(best, perf_counter() - start)
    return size_bytes / best


def _with_bandwidth(
    device: Device, known: dict[str, float], path: Path, *, measure: bool
) -> Device:
    if device.bandwidth_bytes_per_s is not None:
        return device
    speed = known.get(device_key(device))
    if speed is None and measure and device.torch_device == "cpu":
        speed = measure_host_bandwidth()
        known[device_key(device)] = speed
        remember_bandwidth(device, speed, path)
    if speed is not None:
        return replace(device, bandwidth_bytes_per_s=speed, bandwidth_source="measured")
    speed = published_bandwidth(device.name)
    if speed is not None:
        return replace(device, bandwidth_bytes_per_s=speed, bandwidth_source="published")
    return replace(device, bandwidth_bytes_per_s=bandwidth_of(device), bandwidth_source="assumed")


def _read(path: Path) -> dict[str, float]:
    """The remembered bandwidths that make sense."""
    return {
        key: float(value)
        for key, value in read_entries(path).items()
        if isinstance(value, (int, float)) and 0 < value < float("inf")
    }

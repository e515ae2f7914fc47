"""How fast a device reads its own memory: given, measured once, published, or assumed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mrs.devices.device import Device
from mrs.devices.host_memory import host_memory, resident_bytes
from mrs.devices.measurements import cache_file as remembered_file
from mrs.devices.measurements import device_key, host_key, read_entries, write_entries
from mrs.devices.processor import expected_bandwidth
from mrs.devices.published_cards import Card, Maker, published_card, usual_card

FILE_NAME = "bandwidth.json"

#: No device reads its memory faster (the fastest published one reads 8e12). A larger figure is a
#: failed measurement, and because the fastest one is kept, it would be believed for ever.
MOST_BYTES_PER_S = 1e13

#: What the CPU of another machine is assumed to read: a desktop's two channels of DDR5.
CPU_BYTES_PER_S = 60e9

MEASURED_BYTES = 256 * 1024**2
#: Passes that together read all of `MEASURED_BYTES`.
PASSES_PER_ROUND = 8
MEASURED_SECONDS = 0.4


def with_bandwidth(devices: Sequence[Device], cache_file: Path | None = None) -> list[Device]:
    """The devices with the bandwidth of each and the source of that figure.

    The first of these that exists: given by the user, measured and kept in `cache_file` (by
    default in the platform's cache folder), published for that name, assumed.
    """
    known = _read(cache_file or remembered_file(FILE_NAME))
    return [_with_bandwidth(device, known) for device in devices]


def bandwidth_of(device: Device) -> float:
    """Bytes a second: the device's own figure, or what CPUs or cards like this usually have."""
    if device.bandwidth_bytes_per_s is not None:
        return device.bandwidth_bytes_per_s
    if device.torch_device == "cpu":
        return expected_bandwidth()
    return card_of(device).bytes_per_s


def card_of(device: Device) -> Card:
    """The published card of an accelerator's name, or a usual one with its memory."""
    maker: Maker = "Apple" if device.kind == "metal" else "NVIDIA"
    return published_card(device.name) or usual_card(device.total_bytes, maker)


def remember_bandwidth(device: Device, bytes_per_s: float, cache_file: Path | None = None) -> None:
    """Save a measured bandwidth for later plans, unless a faster one is saved or it is impossible.

    Other programs can make a measurement slower, never faster. A folder that cannot be written is
    not an error.
    """
    _remember(device_key(device), bytes_per_s, cache_file)


def learn_host_bandwidth(cache_file: Path | None = None) -> None:
    """Measure how fast the CPU reads its memory, for the plans made from now on."""
    remember_host_bandwidth(measure_host_bandwidth(), cache_file)


def remember_host_bandwidth(bytes_per_s: float, cache_file: Path | None = None) -> None:
    """Save a measured bandwidth of the CPU for later plans."""
    _remember(host_key(), bytes_per_s, cache_file)


def is_host_known(cache_file: Path | None = None) -> bool:
    """Whether the bandwidth of the CPU has been measured before."""
    return host_key() in _read(cache_file or remembered_file(FILE_NAME))


def has_room_to_measure() -> bool:
    """Whether there is far more memory available than a measurement needs."""
    return host_memory().available_bytes - resident_bytes() > 4 * MEASURED_BYTES


def measure_host_bandwidth(size_bytes: int = MEASURED_BYTES) -> float:
    """Bytes a second that all cores together read from memory: the best of many short passes.

    A short pass may find a moment in which no other program uses a core. Together the passes read
    more than the caches hold. numpy's reductions release the interpreter's lock and are bound by
    memory. It takes about half a second.
    """
    from concurrent.futures import ThreadPoolExecutor
    from time import perf_counter

    import numpy as np

    threads = os.cpu_count() or 1
    part_numbers = size_bytes // (8 * PASSES_PER_ROUND * threads)
    passes = np.ones((PASSES_PER_ROUND, threads, part_numbers), dtype=np.int64)
    seconds: list[float] = []
    end = perf_counter() + MEASURED_SECONDS
    with ThreadPoolExecutor(threads) as pool:
        while not seconds or perf_counter() < end:
            parts = passes[len(seconds) % PASSES_PER_ROUND]
            start = perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))
            seconds.append(perf_counter() - start)
    return float(passes[0].nbytes) / min(seconds)


def _with_bandwidth(device: Device, known: dict[str, float]) -> Device:
    if device.bandwidth_bytes_per_s is not None:
        return device
    if device.kind == "cpu" and device.is_hypothetical:
        return replace(device, bandwidth_bytes_per_s=CPU_BYTES_PER_S, bandwidth_source="assumed")
    speed = known.get(device_key(device))
    if speed is not None:
        return replace(device, bandwidth_bytes_per_s=speed, bandwidth_source="measured")
    card = published_card(device.name)
    if card is not None:
        return replace(device, bandwidth_bytes_per_s=card.bytes_per_s, bandwidth_source="published")
    return replace(device, bandwidth_bytes_per_s=bandwidth_of(device), bandwidth_source="assumed")


def _remember(key: str, bytes_per_s: float, cache_file: Path | None) -> None:
    path = cache_file or remembered_file(FILE_NAME)
    known = _read(path)
    if known.get(key, 0) < bytes_per_s <= MOST_BYTES_PER_S:
        write_entries(path, {**known, key: bytes_per_s})


def _read(path: Path) -> dict[str, float]:
    """The saved bandwidths, without values that make no sense."""
    return {
        key: float(value)
        for key, value in read_entries(path).items()
        if isinstance(value, (int, float)) and 0 < value <= MOST_BYTES_PER_S
    }

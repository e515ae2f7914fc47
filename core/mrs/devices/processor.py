"""The processor's name and threads, whether it is busy, and how fast it is expected to be."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from mrs.devices.cpu_path import cpu_path, cpu_paths
from mrs.devices.host_memory import PROC

#: A system load for each thread above which other programs must be running, too.
MOST_OWN_LOAD = 1.3


def cpu_threads() -> int:
    """The threads that torch uses by default."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_busy() -> bool:
    """Whether other programs used the processor in the last minute.

    This program may have used all of its threads.
    """
    try:
        return os.getloadavg()[0] > MOST_OWN_LOAD * cpu_threads()
    except (AttributeError, OSError):  # Windows has no load average
        return False


#: Operations of matrix products in a cycle of one thread, by path: with plain weights and with
#: quantized ones. Those of AVX-512 without bf16 units were measured, 33 to 44 and 71 to 140;
#: the others follow from the widths of the units.
OPERATIONS_PER_CYCLE = {
    "amx": (300.0, 200.0),
    "avx512_bf16": (70.0, 100.0),
    "avx512": (38.0, 100.0),
    "avx_vnni": (20.0, 60.0),
    "avx2": (20.0, 40.0),
    "neon": (16.0, 32.0),
    "portable": (8.0, 16.0),
    "torch": (8.0, 8.0),
}
#: Weights that products take as they are; others are quantized.
PLAIN_FORMATS = ("F32", "F16", "BF16")
ASSUMED_CLOCK_HZ = 3e9
#: What one thread can read, and what all threads can read on a desktop and on a server.
THREAD_BYTES_PER_S, DESKTOP_BYTES_PER_S, SERVER_BYTES_PER_S = 13e9, 40e9, 200e9


def operations_per_s(weights_format: str) -> float:
    """Operations of matrix products that all threads may be expected to do in a second."""
    return cpu_threads() * _clock_hz(PROC) * operations_per_cycle(weights_format, cpu_path())


def operations_per_cycle(weights_format: str, path: str) -> float:
    """Operations of matrix products that one core may be expected to do in a cycle."""
    plain, quantized = OPERATIONS_PER_CYCLE[path]
    if weights_format == "F16":  # no unit multiplies it: it is made float32
        plain = min(plain, OPERATIONS_PER_CYCLE["avx512"][0])
    return plain if weights_format in PLAIN_FORMATS else quantized


def expected_bandwidth() -> float:
    """Bytes a second that all threads may be expected to read from memory."""
    most = SERVER_BYTES_PER_S if "avx512" in cpu_paths() else DESKTOP_BYTES_PER_S
    return min(cpu_threads() * THREAD_BYTES_PER_S, most)


@cache
def _clock_hz(proc: Path) -> float:
    """The fastest clock that Linux reports, or a usual one."""
    clock_hz = 0.0
    try:
        with (proc / "cpuinfo").open(errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == "cpu MHz":
                    clock_hz = max(clock_hz, float(value) * 1e6)
    except (OSError, ValueError):
        pass
    return clock_hz or ASSUMED_CLOCK_HZ


@cache
def cpu_name(proc: Path = PROC) -> str:
    """The name of the processor."""
    try:
        with (proc / "cpuinfo").open(errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    import platform

    return platform.processor() or platform.machine() or "CPU"

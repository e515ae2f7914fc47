"""The GPU of an Apple computer, whose memory is the host's."""

from __future__ import annotations

import platform
import sys

from mrs.devices.device import Device
from mrs.devices.host_memory import HostMemory
from mrs.units import GIB, MIB


def metal_devices(host: HostMemory) -> list[Device]:
    """The one Metal device of Apple silicon; an empty list on other machines."""
    if sys.platform != "darwin" or platform.machine() != "arm64":
        return []
    limit_mib = _sysctl("iogpu.wired_limit_mb")
    total = working_set_bytes(host.total_bytes, int(limit_mib) if limit_mib.isdecimal() else 0)
    return [
        Device(
            kind="metal",
            ordinal=0,
            name=_sysctl("machdep.cpu.brand_string") or "Apple GPU",
            total_bytes=total,
            available_bytes=min(total, host.available_bytes),
            torch_device="mps",
            shares_host_memory=True,
        )
    ]


def working_set_bytes(host_bytes: int, wired_limit_mib: int = 0) -> int:
    """How much of the host's memory Metal recommends that a process wires.

    Two thirds up to 32 GiB and three quarters above, unless the system's own limit is set.
    """
    if wired_limit_mib:
        return min(wired_limit_mib * MIB, host_bytes)
    return host_bytes * 2 // 3 if host_bytes <= 32 * GIB else host_bytes * 3 // 4


def _sysctl(name: str) -> str:
    import subprocess

    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, timeout=2, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()

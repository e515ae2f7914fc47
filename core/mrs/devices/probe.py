"""Find the devices of this machine and the free memory of each, without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mrs.devices.apple import metal_devices
from mrs.devices.device import Device
from mrs.devices.gpu_path import gpu_path
from mrs.devices.host_memory import CGROUP, PROC, HostMemory, host_memory
from mrs.devices.nvidia import cuda_devices
from mrs.devices.parse import logical_devices, what_if_devices
from mrs.devices.processor import cpu_name
from mrs.devices.variables import LOGICAL_VARIABLE


def probe_devices(
    what_if: Sequence[str] = (),
    *,
    cpu_only: bool = False,
    environ: Mapping[str, str] = os.environ,
    proc: Path = PROC,
    cgroup: Path = CGROUP,
) -> list[Device]:
    """The devices to plan for: accelerators in order, then the CPU.

    `what_if` are texts of `--device`. They replace this machine's devices, except its CPU unless
    they name one; it counts with all of its memory then. Otherwise the environment variable
    `MRS_LOGICAL_DEVICES` (`cpu,cpu` or `cpu=2GiB,cpu=4GiB`) makes accelerators 0, 1, … that stand
    for the CPU and hide the real ones.
    A missing driver is not an error: there are no accelerators then. UsageError for texts and
    variables that make no sense. `proc` and `cgroup` are the system's folders.
    """
    gpu_path(environ)  # refuses what no run could use
    host = host_memory(proc, cgroup)
    devices = what_if_devices(what_if)
    if devices and not cpu_only:  # another machine, of which this minute says nothing
        host = host._replace(available_bytes=host.total_bytes)
    if cpu_only:
        devices = [device for device in devices if device.kind == "cpu"]
    elif not devices:
        devices = _accelerators(environ, host, proc)
    if all(device.kind != "cpu" for device in devices):
        devices.append(_cpu(devices, host, proc))
    return devices


def _accelerators(environ: Mapping[str, str], host: HostMemory, proc: Path) -> list[Device]:
    logical = environ.get(LOGICAL_VARIABLE, "").strip()
    if logical:
        return logical_devices(logical, host)
    return cuda_devices(environ, host, proc) or metal_devices(host)


def _cpu(accelerators: Sequence[Device], host: HostMemory, proc: Path) -> Device:
    """The CPU with the memory that no logical accelerator has."""
    cpu = Device("cpu", 0, cpu_name(proc), host.total_bytes, host.available_bytes, "cpu")
    logical = sum(a.available_bytes for a in accelerators if a.torch_device == "cpu")
    return replace(cpu, available_bytes=max(0, cpu.available_bytes - logical))

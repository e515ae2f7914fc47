"""CUDA devices and their free memory, from NVIDIA's management library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from mrs.devices.device import Device
from mrs.devices.host_memory import PROC, HostMemory


class _Gpu(NamedTuple):
    """A card or one slice (MIG) of it."""

    handle: Any
    uuid: str
    name: str


def cuda_devices(environ: Mapping[str, str], host: HostMemory, proc: Path = PROC) -> list[Device]:
    """The GPUs that a CUDA program would see, in PCI order; none without a driver.

    `CUDA_VISIBLE_DEVICES` is read as CUDA reads it: indices, UUIDs or their beginnings, MIG
    slices; an entry that names nothing hides all entries after it. Ordinals count the visible GPUs,
    so they are torch's ordinals if `CUDA_DEVICE_ORDER=PCI_BUS_ID` is set.
    """
    if not _has_driver(proc):
        return []
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        visible = _visible(pynvml, environ.get("CUDA_VISIBLE_DEVICES"))
        return [_device(pynvml, ordinal, gpu, host) for ordinal, gpu in enumerate(visible)]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


@cache
def driver_version() -> str:
    """The version of NVIDIA's driver; empty if it does not say."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ""
    try:
        version = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return ""
    finally:
        pynvml.nvmlShutdown()
    return version.decode() if isinstance(version, bytes) else str(version)


def _has_driver(proc: Path) -> bool:
    """Whether there may be a driver, so that the import is worth its time.

    Only Linux has folders that answer this; True on other systems.
    """
    if not (proc / "meminfo").exists():
        return True
    return (proc / "driver" / "nvidia").exists() or Path("/dev/dxg").exists()


def _visible(nvml: Any, wanted: str | None) -> list[_Gpu]:
    cards = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    slices = {index: _mig_slices(nvml, card) for index, card in enumerate(cards)}
    whole = [_describe(nvml, card) for card in cards]
    # A sliced card cannot be used as a whole: CUDA takes its first slice.
    usable = [slices[i][0] if slices[i] else gpu for i, gpu in enumerate(whole)]
    if wanted is None:
        unsliced = [gpu for i, gpu in enumerate(whole) if not slices[i]]
        return unsliced or usable[:1]
    chosen: list[_Gpu] = []
    every_slice = [piece for pieces in slices.values() for piece in pieces]
    for entry in (part.strip() for part in wanted.split(",")):
        gpu = _find(entry, usable, whole, every_slice)
        if gpu is None or gpu in chosen:
            break
        chosen.append(gpu)
        if gpu in every_slice:
            return [gpu]  # a process sees one slice only
    return chosen


def _find(entry: str, usable: list[_Gpu], whole: list[_Gpu], slices: list[_Gpu]) -> _Gpu | None:
    """The GPU that one entry of CUDA_VISIBLE_DEVICES names."""
    if entry.isdecimal():
        return usable[int(entry)] if int(entry) < len(usable) else None
    if entry.startswith("MIG-"):
        named = [gpu for gpu in slices if gpu.uuid.startswith(entry)]
    elif entry.startswith("GPU-"):
        named = [usable[i] for i, gpu in enumerate(whole) if gpu.uuid.startswith(entry)]
    else:
        return None
    return named[0] if len(named) == 1 else None


def _mig_slices(nvml: Any, card: Any) -> list[_Gpu]:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(card)
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(card) if current else 0
    except nvml.NVMLError:
        return []
    slices = []
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)
        except nvml.NVMLError:
            continue
        slices.append(_describe(nvml, handle))
    return slices


def _describe(nvml: Any, handle: Any) -> _Gpu:
    return _Gpu(
        handle,
        _string(nvml, nvml.nvmlDeviceGetUUID, handle),
        _string(nvml, nvml.nvmlDeviceGetName, handle),
    )


def _string(nvml: Any, ask: Callable[[Any], str | bytes], handle: Any) -> str:
    try:
        answer = ask(handle)
    except nvml.NVMLError:
        return ""
    return answer.decode() if isinstance(answer, bytes) else answer


def _device(nvml: Any, ordinal: int, gpu: _Gpu, host: HostMemory) -> Device:
    """The device with its total and free bytes.

    A chip that shares the host's memory answers with an error.
    """
    shares_host_memory = False
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(gpu.handle)
        total, free = int(memory.total), int(memory.free)
    except nvml.NVMLError:
        total, free = host
        shares_host_memory = True
    return Device(
        kind="cuda",
        ordinal=ordinal,
        name=gpu.name or "CUDA device",
        total_bytes=total,
        available_bytes=free,
        torch_device=f"cuda:{ordinal}",
        shares_host_memory=shares_host_memory,
        uuid=gpu.uuid,
    )

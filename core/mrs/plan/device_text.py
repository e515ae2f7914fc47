"""Devices as people write them: `--device cuda:0=24GiB,bandwidth=448GB/s`, and logical ones."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mrs.errors import UsageError
from mrs.plan.device import Device, DeviceKind
from mrs.plan.host_memory import HostMemory
from mrs.units import parse_bytes

FLAG = "--device"
LOGICAL_VARIABLE = "MRS_LOGICAL_DEVICES"
EXPECTED = "expected such as cuda:0=24GiB, cuda:1=16GiB,bandwidth=448GB/s or cpu=64GiB"
_DEVICE = re.compile(r"(cuda|metal|cpu)(?::([0-9]{1,4}))?")


def what_if_devices(texts: Sequence[str]) -> list[Device]:
    """The devices that `--device` describes, idle, accelerators as given and the CPU last.

    UsageError quotes the text at fault.
    """
    devices: list[Device] = []
    for text in texts:
        device = _what_if_device(text)
        if device.label in (known.label for known in devices):
            raise UsageError(f"{device.label} comes twice", where=FLAG, hint="name each once")
        devices.append(device)
    return sorted(devices, key=lambda device: device.kind == "cpu")


def _what_if_device(text: str) -> Device:
    label, equals, values = text.partition("=")
    match = _DEVICE.fullmatch(label.strip())
    if match is None or not equals or (match[1] == "cpu" and match[2]):
        raise UsageError(f"{text!r} is no device", where=FLAG, hint=EXPECTED)
    size_text, *options = values.split(",")
    size = _bytes(size_text, text)
    bandwidth: float | None = None
    for option in options:
        key, _, value = option.partition("=")
        if key.strip() != "bandwidth" or bandwidth is not None:
            raise UsageError(f"{option!r} in {text!r} is unknown", where=FLAG, hint=EXPECTED)
        bandwidth = float(_bytes(value.strip().removesuffix("/s"), text))
    kind: DeviceKind = "cuda" if match[1] == "cuda" else "metal" if match[1] == "metal" else "cpu"
    ordinal = int(match[2] or 0)
    return Device(
        kind=kind,
        ordinal=ordinal,
        name="imagined",
        total_bytes=size,
        available_bytes=size,
        torch_device={"cuda": f"cuda:{ordinal}", "metal": "mps", "cpu": "cpu"}[kind],
        bandwidth_bytes_per_s=bandwidth,
        bandwidth_source="given" if bandwidth is not None else None,
        shares_host_memory=kind == "metal",
    )


def _bytes(size_text: str, text: str) -> int:
    try:
        size = parse_bytes(size_text)
    except ValueError as error:
        raise UsageError(f"{error}, in {text!r}", where=FLAG, hint=EXPECTED) from None
    if size <= 0:
        raise UsageError(f"{size_text!r} in {text!r} is nothing", where=FLAG, hint=EXPECTED)
    return size


def logical_devices(text: str, host: HostMemory) -> list[Device]:
    """Accelerators that stand for the CPU, from `cpu,cpu` or `cpu=2GiB,cpu=4GiB`.

    They have ordinals 0, 1, … and their tensors live in host memory, so a split placement can be
    run and tested where there is no GPU. Those without a size share what the sized ones leave of
    the host's available memory, in equal parts with the CPU itself, so that no byte counts twice.
    UsageError quotes the part at fault.
    """
    sizes: list[int | None] = []
    for part in text.split(","):
        kind, equals, size = part.strip().partition("=")
        if kind != "cpu":
            raise UsageError(
                f"{part.strip()!r} is no logical device",
                where=LOGICAL_VARIABLE,
                hint="expected such as cpu,cpu or cpu=2GiB,cpu=4GiB",
            )
        sizes.append(_logical_bytes(size) if equals else None)
    unsized = sum(size is None for size in sizes)
    left = max(0, host.available_bytes - sum(size or 0 for size in sizes))
    share = left // (unsized + 1)
    return [
        Device(
            kind="cuda",
            ordinal=ordinal,
            name="logical device on the CPU",
            total_bytes=share if size is None else size,
            available_bytes=share if size is None else size,
            torch_device="cpu",
        )
        for ordinal, size in enumerate(sizes)
    ]


def _logical_bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise UsageError(str(error), where=LOGICAL_VARIABLE) from None

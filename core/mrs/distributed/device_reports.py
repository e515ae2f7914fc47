"""What a rank says of its device, and what the head makes of that."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.devices.device import Device
from mrs.distributed.messages import DeviceReport


def own_device(devices: Sequence[Device]) -> DeviceReport:
    """The report of the device that a rank uses, the first."""
    from mrs.devices.bandwidth import bandwidth_of, with_bandwidth
    from mrs.devices.memory_nodes import memory_nodes

    first = with_bandwidth(devices)[0]
    nodes = max(1, len(memory_nodes())) if first.kind == "cpu" else 1
    return DeviceReport(first.label, first.name, first.available_bytes, bandwidth_of(first), nodes)


def reported_device(report: DeviceReport, sharing: int) -> Device:
    """The device of a rank, whose memory so many ranks share."""
    kind, free_bytes = report.label.partition(":")[0], report.free_bytes // sharing
    return Device(
        kind=kind,  # type: ignore[arg-type]
        ordinal=0,
        name=report.name,
        total_bytes=free_bytes,
        available_bytes=free_bytes,
        torch_device={"metal": "mps"}.get(kind, kind),
        bandwidth_bytes_per_s=report.bytes_per_s,
        bandwidth_source="measured",
    )

"""What a rank says of its device, and what the head makes of that."""

from __future__ import annotations

from collections.abc import Sequence

from mrs.devices.device import Device
from mrs.distributed.protocol.messages import DeviceReport


def own_device(devices: Sequence[Device]) -> DeviceReport:
    """The report of the device that a rank uses, the first."""
    from mrs.devices.bandwidth import bandwidth_of, with_bandwidth
    from mrs.devices.host_memory import held_bytes
    from mrs.devices.memory_nodes import memory_nodes

    first = with_bandwidth(devices)[0]
    is_cpu = first.kind == "cpu"
    return DeviceReport(
        first.label,
        first.name,
        first.available_bytes,
        bandwidth_of(first),
        max(1, len(memory_nodes())) if is_cpu else 1,
        first.uuid,
        held_bytes() if is_cpu else 0,
    )


def reported_device(report: DeviceReport, free_bytes: int) -> Device:
    """The device of a rank, of whose memory it may have so much."""
    kind = report.label.partition(":")[0]
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

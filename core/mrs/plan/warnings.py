"""Warnings about a plan, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mrs.architecture.model_spec import ModelSpec
from mrs.devices.device import Device
from mrs.plan.memory.breakdown import MemoryBreakdown
from mrs.plan.placement.kv_pool import pool_warnings
from mrs.plan.placement.placement import Placement
from mrs.request import RunRequest
from mrs.units import human_bytes

if TYPE_CHECKING:
    from mrs.plan.memory.device_sizes import Workload
    from mrs.plan.memory.vision_sizes import VisionSizes


def plan_warnings(
    request: RunRequest,
    spec: ModelSpec,
    placement: Placement,
    devices: Sequence[Device],
    breakdowns: Sequence[MemoryBreakdown],
    vision: VisionSizes | None,
    workload: Workload,
) -> tuple[str, ...]:
    lines = [*placement.warnings, *pool_warnings(request.paged, workload, devices[0].kind)]
    lines += length_warnings(request, spec)
    if vision is not None and vision.images * vision.image_rows >= workload.context_tokens:
        lines.append(
            f"{vision.what} take "
            f"{vision.images * vision.image_rows} of the {workload.context_tokens} planned tokens: "
            "raise --max-seq-len"
        )
    for device, breakdown in zip(devices, breakdowns, strict=True):
        if breakdown.layers and device.kind == "cpu" and devices[0].shares_host_memory:
            lines.append(_shared(devices, breakdowns))
        if breakdown.total.high > breakdown.available_bytes >= breakdown.needed_bytes:
            beyond = human_bytes(breakdown.total.high - breakdown.available_bytes)
            lines.append(f"tight: in the worst case {device.label} is {beyond} short")
    return tuple(lines)


def length_warnings(request: RunRequest, spec: ModelSpec) -> tuple[str, ...]:
    """What is said of a wished length beyond that of the model."""
    if request.max_seq_len is None or request.max_seq_len <= spec.context_tokens:
        return ()
    most = spec.context_tokens
    beyond = f"--max-seq-len {request.max_seq_len} is beyond the model's {most} tokens"
    return (f"{beyond}: planned for {most}",)


def _shared(devices: Sequence[Device], breakdowns: Sequence[MemoryBreakdown]) -> str:
    """The warning that an accelerator and the CPU use the same memory."""
    labels = " and ".join(device.label for device in devices)
    needed = human_bytes(sum(breakdown.needed_bytes for breakdown in breakdowns))
    most = human_bytes(max(breakdown.available_bytes for breakdown in breakdowns))
    return f"{labels} share one memory: together they need {needed} of {most}"

"""Compare a plan with measurements of the loaded model at its peak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mrs.devices.device import Device
from mrs.plan.memory.breakdown import Correction
from mrs.plan.plan import Plan


@dataclass(frozen=True)
class Measured:
    """Bytes that one torch device had; None if they cannot be measured."""

    weight_bytes: int
    kv_bytes: int
    activation_bytes: int | None
    runtime_bytes: int | None


@dataclass(frozen=True)
class HostMeasured:
    """Bytes of the process as the system counts them: before loading, and at the peak."""

    program_bytes: int
    peak_bytes: int | None


@dataclass(frozen=True)
class Row:
    """One term of one device."""

    device: str
    term: str
    predicted_bytes: int
    measured_bytes: int | None


@dataclass(frozen=True)
class Reconciliation:
    """Every term, and tokens a second of prefill and of decoding at the full length.

    `corrections` are for later plans on the same devices.
    """

    rows: tuple[Row, ...]
    prompt_tokens_per_s: float
    decode_tokens_per_s: float
    corrections: Mapping[Device, Correction]


def reconcile(
    plan: Plan,
    used_corrections: Mapping[str, Correction],
    measured: Mapping[str, Measured],
    host: HostMeasured,
    prompt_tokens_per_s: float,
    decode_tokens_per_s: float,
) -> Reconciliation:
    """Compare `measured`, by torch device, with the plan.

    The terms of logical devices on one torch device are added up, except activations: these never
    exist at the same time, so the largest counts.
    """
    rows: list[Row] = []
    corrections: dict[Device, Correction] = {}
    for torch_device, device_use in measured.items():
        used = [
            (device, breakdown)
            for device, breakdown in zip(plan.devices, plan.breakdowns, strict=True)
            if device.torch_device == torch_device and breakdown.is_used
        ]
        if not used:
            continue
        label = " + ".join(device.label for device, _ in used)
        activations = max(breakdown.activations.expected for _, breakdown in used)
        runtime = sum(breakdown.runtime.expected for _, breakdown in used if not breakdown.is_cpu)
        rows += [
            Row(
                label,
                "weights",
                sum(each.weight_bytes for _, each in used),
                device_use.weight_bytes,
            ),
            Row(label, "KV cache", sum(each.kv_bytes for _, each in used), device_use.kv_bytes),
            Row(label, "activations", activations, device_use.activation_bytes),
        ]
        if runtime or device_use.runtime_bytes:
            rows.append(Row(label, "runtime", runtime, device_use.runtime_bytes))
        before = used_corrections.get(used[0][0].label, Correction())
        if device_use.activation_bytes:
            ratio = device_use.activation_bytes / activations * before.activation_ratio
            corrections[used[0][0]] = Correction(ratio, device_use.runtime_bytes)
    rows += _process_rows(plan, rows, host)
    return Reconciliation(
        tuple(rows),
        prompt_tokens_per_s,
        decode_tokens_per_s,
        corrections,
    )


def _process_rows(plan: Plan, rows: list[Row], host: HostMeasured) -> list[Row]:
    """The program, the part of the peak that no other row explains, and the whole process."""
    label = plan.devices[-1].label
    on_host = [
        breakdown
        for device, breakdown in zip(plan.devices, plan.breakdowns, strict=True)
        if device.torch_device == "cpu"
    ]
    program_rows = [Row(label, "program", plan.breakdowns[-1].runtime.expected, host.program_bytes)]
    if host.peak_bytes is None:
        return program_rows
    host_labels = {device.label for device in plan.devices if device.torch_device == "cpu"}
    known = host.program_bytes + sum(
        row.measured_bytes or 0 for row in rows if host_labels.issuperset(row.device.split(" + "))
    )
    gaps = sum(breakdown.allocator.expected for breakdown in on_host)
    whole = sum(breakdown.total.expected for breakdown in on_host)
    return [
        *program_rows,
        Row(label, "unexplained", gaps, host.peak_bytes - known),
        Row(label, "process", whole, host.peak_bytes),
    ]

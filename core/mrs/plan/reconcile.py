"""Predicted beside measured, after a plan was loaded and its worst moment was run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mrs.plan.account import Correction
from mrs.plan.device import Device
from mrs.plan.plan import Plan


@dataclass(frozen=True)
class Measured:
    """What one torch device held; None where it cannot be told."""

    weight_bytes: int
    kv_bytes: int
    activation_bytes: int | None
    runtime_bytes: int | None


@dataclass(frozen=True)
class Row:
    """One term of one device."""

    device: str
    term: str
    predicted_bytes: int
    measured_bytes: int | None


@dataclass(frozen=True)
class Reconciliation:
    """Every term, and tokens a second of the prompt and of decoding at the full length.

    `corrections` are what was learnt of devices.
    """

    rows: tuple[Row, ...]
    prompt_tokens_per_s: float
    decode_tokens_per_s: float
    corrections: Mapping[Device, Correction]


def reconcile(
    plan: Plan,
    used_corrections: Mapping[str, Correction],
    measured: Mapping[str, Measured],
    prompt_tokens_per_s: float,
    decode_tokens_per_s: float,
) -> Reconciliation:
    """Hold `measured`, by torch device, against the plan.

    Logical devices that stand for one torch device are summed up; of their activations, which
    never live at once, the largest counts.
    """
    rows: list[Row] = []
    corrections: dict[Device, Correction] = {}
    for torch_device, found in measured.items():
        held = [
            (device, terms)
            for device, terms in zip(plan.devices, plan.terms, strict=True)
            if device.torch_device == torch_device and terms.total.expected
        ]
        if not held:
            continue
        label = " + ".join(device.label for device, _ in held)
        activations = max(terms.activations.expected for _, terms in held)
        runtime = sum(terms.runtime.expected for _, terms in held)
        rows += [
            Row(label, "weights", sum(t.weight_bytes for _, t in held), found.weight_bytes),
            Row(label, "KV cache", sum(t.kv_bytes for _, t in held), found.kv_bytes),
            Row(label, "activations", activations, found.activation_bytes),
        ]
        if runtime or found.runtime_bytes:
            rows.append(Row(label, "runtime", runtime, found.runtime_bytes))
        before = used_corrections.get(held[0][0].label, Correction())
        if found.activation_bytes:
            ratio = found.activation_bytes / activations * before.activation_ratio
            corrections[held[0][0]] = Correction(ratio, found.runtime_bytes)
    return Reconciliation(
        tuple(rows),
        prompt_tokens_per_s,
        decode_tokens_per_s,
        corrections,
    )

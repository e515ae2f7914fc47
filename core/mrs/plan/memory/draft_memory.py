"""Memory of a draft model, which is on the first device together with the large model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mrs.devices.device import Device
from mrs.plan.memory.breakdown import MemoryBreakdown
from mrs.plan.memory.overhead import Estimate


def draft_breakdown(alone: MemoryBreakdown, objects: Estimate) -> MemoryBreakdown:
    """What a draft model adds to a device, from its memory `alone` there.

    The program and the driver are there already: only its own `objects` come in addition.
    """
    runtime_bytes = alone.runtime.high if alone.is_cpu else alone.runtime.expected
    added_bytes = objects.high if alone.is_cpu else 0
    return replace(
        alone,
        runtime=objects,
        reserve_bytes=0,
        loading_bytes=alone.loading_bytes - runtime_bytes + added_bytes,
    )


def devices_without(draft: MemoryBreakdown, devices: Sequence[Device]) -> list[Device]:
    """The devices with the memory that a draft model on the first one leaves."""
    available_bytes = max(0, devices[0].available_bytes - draft.needed_bytes)
    return [replace(devices[0], available_bytes=available_bytes), *devices[1:]]

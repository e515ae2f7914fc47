"""Reports how much of each device's weights is loaded."""

from __future__ import annotations

from collections.abc import Callable

from mrs.events import LoadProgress, OnProgress
from mrs.plan.memory.breakdown import host_index
from mrs.plan.plan import Plan


def weights_progress(plan: Plan, report: OnProgress) -> Callable[[str, int], None]:
    """A function of a loaded parameter's name and bytes; reports the bytes on its device so far."""
    totals = plan.weight_bytes()
    if shared_bytes := plan.on_disk.shared_bytes:  # which no parameter has for itself
        totals[host_index(plan.devices)] -= shared_bytes
    done = dict.fromkeys(totals, 0)
    for index, total_bytes in totals.items():
        report(LoadProgress(plan.devices[index].label, 0, total_bytes))

    def on_bytes(name: str, size_bytes: int) -> None:
        index = plan.parameter_devices[name]
        done[index] += size_bytes
        report(LoadProgress(plan.devices[index].label, done[index], totals[index]))

    return on_bytes

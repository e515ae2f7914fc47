"""The planned and the current memory of a loaded model, as two tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mrs.events import DeviceMemoryUsage
from mrs.units import human_bytes
from mrs_cli.render.plan.plan_facts import PARTS, USED_PARTS, layer_ranges, part_bytes
from mrs_cli.render.safe_text import table

if TYPE_CHECKING:
    from mrs.plan.plan import Plan


def memory_tables(plan: Plan, memory: Sequence[DeviceMemoryUsage]) -> str:
    """The planned memory of each device in use, then what the process uses now."""
    rows: list[tuple[str, ...]] = [
        ("planned", "layers", *(name for name, _, _ in PARTS[:USED_PARTS]))
    ]
    for index, (device, breakdown) in enumerate(zip(plan.devices, plan.breakdowns, strict=True)):
        if breakdown.is_used:
            layers = [numbers for owner, numbers in layer_ranges(plan) if owner == index]
            sizes = map(human_bytes, part_bytes(breakdown)[:USED_PARTS])
            rows.append((device.label, ", ".join(layers) or "none", *sizes))
    now: list[tuple[str, ...]] = [("now", "used", "free")]
    now += [(m.device, human_bytes(m.used_bytes), human_bytes(m.available_bytes)) for m in memory]
    return "\n".join(
        (*table(rows, right=range(1, len(rows[0]))), "", *table(now, right=range(1, len(now[0]))))
    )

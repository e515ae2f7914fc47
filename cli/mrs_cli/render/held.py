"""What of a loaded model sits where, and the memory held now, as two tables of plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mrs.events import DeviceMemoryUsage
from mrs.units import human_bytes
from mrs_cli.render.text import table

if TYPE_CHECKING:
    from mrs.plan.plan import Plan


def held_text(plan: Plan, memory: Sequence[DeviceMemoryUsage]) -> str:
    """The planned share of each device in use, and what the process holds there now."""
    rows: list[tuple[str, ...]] = [
        ("planned", "layers", "weights", "KV cache", "activations", "runtime")
    ]
    for index, (device, terms) in enumerate(zip(plan.devices, plan.terms, strict=True)):
        if terms.is_used:
            sizes = (
                terms.weight_bytes,
                terms.kv_bytes,
                terms.activations.expected,
                terms.runtime.expected + terms.allocator.expected,
            )
            rows.append((device.label, _layers(plan, index), *map(human_bytes, sizes)))
    now: list[tuple[str, ...]] = [("now", "held", "free")]
    now += [(m.device, human_bytes(m.used_bytes), human_bytes(m.available_bytes)) for m in memory]
    return "\n".join(
        (*table(rows, right=range(1, len(rows[0]))), "", *table(now, right=range(1, len(now[0]))))
    )


def _layers(plan: Plan, wanted: int) -> str:
    """`0\u201315`, or several such ranges, of the device with this index."""
    ranges, first = [], 0
    for index, count in plan.runs:
        if index == wanted:
            ranges.append(f"{first}\u2013{first + count - 1}" if count > 1 else str(first))
        first += count
    return ", ".join(ranges) or "none"

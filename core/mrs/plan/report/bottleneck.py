"""The device that limits a plan, and the largest use of its memory."""

from __future__ import annotations

from dataclasses import dataclass

from mrs.plan.memory.breakdown import MemoryBreakdown
from mrs.plan.plan import Plan
from mrs.units import human_bytes


@dataclass(frozen=True)
class Binding:
    """The device with the least free memory, and the term that needs most of its memory."""

    device: str
    term: str
    term_bytes: int
    free_bytes: int

    @property
    def text(self) -> str:
        size = human_bytes(abs(self.free_bytes))
        room = "short" if self.free_bytes < 0 else "left"
        take = "take" if self.term.endswith("s") else "takes"
        return f"{self.device}, {size} {room} ({self.term} {take} {human_bytes(self.term_bytes)})"


def binding(plan: Plan) -> Binding:
    """The limit of a plan: an accelerator with layers, or the CPU if no accelerator has any.

    If the plan lacks memory, it is the device that lacks most. That may be a CPU without layers,
    which has the program.
    """
    used = [index for index, breakdown in enumerate(plan.breakdowns) if breakdown.is_used]
    lacking = [i for i, breakdown in enumerate(plan.breakdowns) if breakdown.missing_bytes]
    accelerators = [index for index in used if plan.devices[index].kind != "cpu"]
    index = min(lacking or accelerators or used, key=lambda i: _spare_bytes(plan.breakdowns[i]))
    breakdown = plan.breakdowns[index]
    sizes = {
        "weights": breakdown.weight_bytes,
        "KV cache": breakdown.kv_bytes,
        "activations": breakdown.activations.expected,
        "runtime": breakdown.runtime.expected,
    }
    largest = max(sizes, key=lambda name: sizes[name])
    return Binding(plan.devices[index].label, largest, sizes[largest], _spare_bytes(breakdown))


def _spare_bytes(breakdown: MemoryBreakdown) -> int:
    """Free bytes; below 0 for missing ones. Bytes of the reserve are not missing."""
    return -breakdown.missing_bytes or max(0, breakdown.free_bytes)

"""How weights change from the files to memory: widened, narrowed, quantized, or not used."""

from __future__ import annotations

from dataclasses import dataclass

from mrs.formats import FORMATS
from mrs.plan.plan import Plan
from mrs.units import human_bytes

#: Differences below this share of the files are not reported.
SMALLEST_SHARE = 0.01
#: Better known names of formats.
_NAMES = {"F8_E4M3": "FP8"}


@dataclass(frozen=True)
class Conversion:
    """Weights that are in another format in memory than in the files."""

    stored: str
    kept: str
    file_bytes: int
    memory_bytes: int
    is_exact: bool = False

    @property
    def verb(self) -> str:
        if FORMATS[self.kept].is_quantized:
            return "repacked" if self.is_exact else "quantized"
        return "widened" if self.memory_bytes > self.file_bytes else "narrowed"


def memory_bytes(plan: Plan) -> int:
    """Bytes of weights on all devices."""
    return sum(breakdown.weight_bytes for breakdown in plan.breakdowns)


def conversions(plan: Plan) -> list[Conversion]:
    """The conversions of at least `SMALLEST_SHARE`, those of most bytes in the files first."""
    sums: dict[tuple[str, str, bool], tuple[int, int]] = {}
    for name, kept in plan.storage.items():
        stored = plan.stored[name]
        is_same = stored.format.name == kept.format.name
        if not is_same or stored.scheme not in ("", kept.format.name):
            key = stored.scheme or stored.format.name, kept.format.name, is_same
            file_bytes, kept_bytes = sums.get(key, (0, 0))
            sums[key] = file_bytes + stored.size_bytes, kept_bytes + kept.size_bytes
    entries = [Conversion(*key[:2], *sizes, key[2]) for key, sizes in sums.items()]
    least = SMALLEST_SHARE * plan.model.file_bytes
    entries = [each for each in entries if max(each.file_bytes, each.memory_bytes) >= least]
    return sorted(entries, key=lambda each: -each.file_bytes)


def conversion_text(plan: Plan) -> str:
    """One line if the sizes in memory and in the files differ, else an empty text.

    It also says how many bytes of adapters are added to the weights.
    """
    file_bytes, in_memory = plan.model.file_bytes, memory_bytes(plan)
    least = SMALLEST_SHARE * file_bytes
    merged = plan.model.merged_bytes
    if abs(in_memory - file_bytes) < least and not merged:
        return ""
    becomes: dict[str, list[str]] = {}
    for each in conversions(plan):
        name = _NAMES.get(each.stored, each.stored)
        becomes.setdefault(f"{name} is {each.verb} to", []).append(each.kept)
    reasons = [f"{what} {' and '.join(kept)}" for what, kept in becomes.items()]
    if merged:
        reasons.append(f"{human_bytes(merged)} of adapters are added to the weights")
    unused = file_bytes - merged - sum(stored.size_bytes for stored in plan.stored.values())
    if plan.draft is not None and plan.draft.model.is_head:
        own = (each.name for each in plan.draft.parameters if not each.is_shared)
        unused -= sum(plan.draft.stored[name].size_bytes for name in own)
    if unused >= least:
        reasons.append(f"{human_bytes(unused)} are not used")
    why = f": {', '.join(reasons)}" if reasons else ""
    return f"{human_bytes(file_bytes)} in the files, {human_bytes(in_memory)} in memory{why}"

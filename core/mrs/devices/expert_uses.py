"""How often earlier runs have chosen each expert of a model on disk: for plans, and to begin with.

One file for each model, beside the files of its layers, which other quantizations of it share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from mrs.devices.measurements import read_entries, write_entries

FILE_NAME = "expert-uses.json"
#: Fewer uses for each expert say little: those that seem to be used most were so by chance.
LEAST_USES = 6
#: Such a figure is not a count.
MOST_USES = 1 << 40
#: Uses by layer, of each expert in order.
Uses = Mapping[int, Sequence[int]]


def read_uses(folder: Path, experts: Mapping[int, int]) -> Uses:
    """The uses in layers with so many experts; none if the file of the model has not all of them.

    None either if they are few, or the file is damaged.
    """
    entries = read_entries(folder / FILE_NAME)
    uses: dict[int, list[int]] = {}
    for layer, count in experts.items():
        counts = entries.get(str(layer))
        if not _are_counts(counts, count):
            return {}
        uses[layer] = counts
    enough = LEAST_USES * sum(experts.values())
    return uses if sum(map(sum, uses.values())) >= enough else {}


def remember_uses(folder: Path, uses: Uses) -> None:
    """Save the uses of a run, which began with those of earlier ones; others are kept."""
    entries = {str(layer): list(counts) for layer, counts in uses.items()}
    write_entries(folder / FILE_NAME, {**read_entries(folder / FILE_NAME), **entries})


def hit_rate(uses: Uses, slots: int) -> float | None:
    """The share of uses of the experts that are used most, so many of all; None without uses."""
    counts = sorted((count for layer in uses.values() for count in layer), reverse=True)
    total = sum(counts)
    return sum(counts[:slots]) / total if total else None


def _are_counts(value: Any, count: int) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and len(value) == count
        and all(type(each) is int and 0 <= each <= MOST_USES for each in value)
    )

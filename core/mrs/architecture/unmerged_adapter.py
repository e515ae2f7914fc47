"""A LoRA adapter that stays apart from the weights, so that requests can choose it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class UnmergedAdapter(NamedTuple):
    """An adapter that requests choose by name: its largest rank, and the scale of each slot.

    For the slot `layers.0.mixer.q` its matrices are `down_name` and `up_name` of it.
    """

    name: str
    rank: int
    scales: Mapping[str, float]


def down_name(slot: str, adapter: str) -> str:
    """The parameter (rank, columns) of an adapter for a slot."""
    return f"{slot}.adapter.{adapter}.down"


def up_name(slot: str, adapter: str) -> str:
    """The parameter (rows, rank) of an adapter for a slot."""
    return f"{slot}.adapter.{adapter}.up"

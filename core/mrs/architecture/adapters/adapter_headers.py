"""A LoRA adapter before its tensors are bound to a model, and one that requests can choose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from mrs.architecture.weight_scheme import TensorHeader
from mrs.request import AdapterRequest

_MARK = "adapter "


class AdapterHeaders(Protocol):
    """The fields of `mrs.source.adapter_files.AdapterFiles` that are read here."""

    @property
    def request(self) -> AdapterRequest: ...
    @property
    def where(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Mapping[str, TensorHeader]: ...


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


def adapter_tensor(index: int, name: str) -> str:
    """The name of a tensor of the adapter of that index, in a checkpoint with its adapters."""
    return f"{_MARK}{index}: {name}"


def is_adapter_tensor(name: str) -> bool:
    return name.startswith(_MARK)

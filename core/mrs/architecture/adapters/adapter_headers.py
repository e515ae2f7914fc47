"""A LoRA adapter before its tensors are bound to a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from mrs.weights.weight_scheme import TensorHeader

_MARK = "adapter "


class AdapterHeaders(Protocol):
    """The fields of `mrs.source.adapter_files.AdapterFiles` that are read here."""

    @property
    def name(self) -> str: ...
    @property
    def is_merged(self) -> bool: ...
    @property
    def where(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Mapping[str, TensorHeader]: ...


def adapter_tensor(index: int, name: str) -> str:
    """The name of a tensor of the adapter of that index, in a checkpoint with its adapters."""
    return f"{_MARK}{index}: {name}"


def is_adapter_tensor(name: str) -> bool:
    return name.startswith(_MARK)

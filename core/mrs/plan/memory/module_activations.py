"""Activation bytes of a mixer, an MLP or experts, by the function that its spec names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrs.layers.forward_pass import ForwardShape, StorageOf
from mrs.layers.mixer import loaded

if TYPE_CHECKING:
    from mrs.layers.mixer import Module


def module_bytes(
    module: Module, shape: ForwardShape, hidden_size: int, storage_of: StorageOf
) -> int:
    """Peak bytes of a mixer, an MLP or experts, without the input (T, h)."""
    count = loaded(module.own_code().activation_bytes)
    peak: int = count(module, shape, hidden_size, storage_of)
    return peak

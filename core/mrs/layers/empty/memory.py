"""Activation bytes of what computes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mrs.layers.forward_pass import ForwardShape, StorageOf

if TYPE_CHECKING:
    from mrs.layers.mixer import Module


def no_bytes(module: Module, shape: ForwardShape, hidden_size: int, storage_of: StorageOf) -> int:
    """Peak bytes of a module that computes nothing."""
    return 0

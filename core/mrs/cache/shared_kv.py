"""Keys and values that a layer reads from the cache of an earlier layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from mrs.cache.layer_cache import LayerSlice, TensorShape
from mrs.kernels.paged import PagedKV


class SharedKVCache:
    """The keys and values `kv` of another layer: nothing of its own is stored, saved or restored.

    They may be on another device than the layer.
    """

    is_state = False
    keeps_all = True
    nbytes = 0

    def __init__(self, kv: PagedKV, group: int) -> None:
        self.kv = kv
        self.group = group

    @property
    def device(self) -> torch.device:
        return self.kv.device

    def export(self, start: int, end: int) -> LayerSlice | None:
        return None

    def restore(self, length: int, slices: Sequence[LayerSlice | None]) -> None:
        """The other layer restores them."""

    def serves(self, start: int, end: int, first: int | None, length: int) -> bool:
        return True

    def fits(self, first: int, end: int, shapes: Mapping[str, TensorShape]) -> bool:
        return not shapes

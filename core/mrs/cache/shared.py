"""What a layer sees that keeps no keys of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from mrs.cache.layer import KeyValueCache


class SharedCache:
    """The keys and values of an earlier layer, whose cache `source` holds them for both.

    That one rewinds and is remembered; this one goes along.
    """

    def __init__(self, source: KeyValueCache) -> None:
        self._source = source

    @property
    def length(self) -> int:
        return self._source.length

    @property
    def nbytes(self) -> int:
        return 0

    @property
    def device(self) -> torch.device:
        return self._source.device

    def seen(self, tokens: int) -> tuple[Tensor, Tensor]:
        """What the last `tokens` tokens may look at, as `source` gave it when they came."""
        first, end, reach = self._source.oldest, self._source.length, self._source.reach
        if reach is not None:
            first = max(first, end - tokens - reach)
        keys, values = self._source.contents(first, end)
        return keys, values

    def can_rewind_to(self, length: int) -> bool:
        return self._source.can_rewind_to(length)

    def rewind(self, length: int) -> None:
        self._source.rewind(length)

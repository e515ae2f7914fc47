"""What a layer's attention does besides plain softmax attention: one value for all backends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor


@dataclass(frozen=True, eq=False)
class AttentionOptions:
    """How scores become weights.

    scale    multiplies the products of queries and keys
    window   hides keys that are `window` or more positions back; None hides none
    softcap  replaces a score s by softcap * tanh(s / softcap)
    sinks    (H,) a score of each head that has no value
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @cached_property
    def without_window(self) -> AttentionOptions:
        return self if self.window is None else replace(self, window=None)

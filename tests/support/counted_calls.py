"""How often a module is called."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class Counting:
    """Calls another vision module and counts the calls."""

    def __init__(self, inner: Any) -> None:
        self.description, self._inner, self.calls = inner.description, inner, 0

    def __call__(self, *args: Any) -> Tensor:
        self.calls += 1
        return self._inner(*args)

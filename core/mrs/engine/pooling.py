"""The embedding of a prompt: its final hidden states in one vector."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

PoolingKind = Literal["mean", "last"]
POOLING_KINDS: tuple[PoolingKind, ...] = get_args(PoolingKind)


class Pooling:
    """Collects the hidden states of a prompt, chunk by chunk: their mean, or the last of them."""

    def __init__(self, kind: PoolingKind) -> None:
        self._kind = kind
        self._sum: Tensor | None = None
        self._count = 0

    def add(self, hidden: Tensor, *, is_first: bool) -> None:
        """Add the states (N, hidden) of the next tokens; the first ones replace all before."""
        if is_first or self._kind == "last":
            self._sum, self._count = None, 0
        rows = hidden[-1:] if self._kind == "last" else hidden
        if self._sum is None:
            self._sum = torch.zeros(rows.shape[1], dtype=torch.float64)
        # Row by row, so that the sum is the same in chunks of any size.
        for row in rows.cpu():
            self._sum += row
        self._count += rows.shape[0]

    def vector(self) -> list[float]:
        """The embedding, with length 1."""
        assert self._sum is not None
        mean = self._sum / self._count
        found: list[float] = (mean / mean.norm().clamp_min(1e-12)).tolist()
        return found

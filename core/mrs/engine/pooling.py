"""The vector of a text: its final hidden states, pooled and read out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mrs.architecture.readout import PoolingKind


class Pooling:
    """Collects the hidden states of a prompt, chunk by chunk, and makes a vector of them.

    With `normalize` the vector gets the length 1.
    """

    def __init__(self, kind: PoolingKind, *, normalize: bool = True) -> None:
        self._kind = kind
        self._normalize = normalize
        self._pooled: Tensor | None = None
        self._count = 0
        #: The values of the vector, after the last chunk.
        self.values: list[float] = []

    def add(self, hidden: Tensor, *, is_first: bool) -> None:
        """Add the states (N, hidden) of the next tokens; the first ones replace all before."""
        if is_first:
            self._pooled, self._count = None, 0
        states = hidden.cpu().double()
        if self._kind == "mean":
            # Row by row, so that the sum is the same in chunks of any size.
            total = self._pooled
            self._pooled = total = torch.zeros_like(states[0]) if total is None else total
            for row in states:
                total += row
        elif self._kind == "max":
            rows = states if self._pooled is None else torch.cat((self._pooled[None], states))
            self._pooled = rows.amax(0)
        elif self._kind == "last" or self._pooled is None:
            self._pooled = states[-1 if self._kind == "last" else 0]
        self._count += len(states)

    def finish(self, read_out: Callable[[Tensor], Tensor] | None) -> None:
        """Make the vector after the last chunk, which `read_out` transforms before its norm."""
        assert self._pooled is not None
        vector = self._pooled / self._count if self._kind == "mean" else self._pooled
        if read_out is not None:
            vector = read_out(vector)
        if self._normalize:
            vector = vector / vector.norm().clamp_min(1e-12)
        self.values, self._pooled = vector.tolist(), None

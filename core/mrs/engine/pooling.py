"""The vector of a text: its final hidden states, pooled."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from mrs.architecture.pooler import PoolingKind


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
        self.values = array("d")

    def add(self, hidden: Tensor, *, is_first: bool) -> None:
        """Add the states (N, hidden) of the next tokens; the first ones replace all before."""
        before = None if is_first else self._pooled
        self._count = len(hidden) + (0 if is_first else self._count)
        if self._kind == "cls":
            self._pooled = _on_host(hidden[0]) if before is None else before
        elif self._kind == "last":
            self._pooled = _on_host(hidden[-1])
        elif self._kind == "max":
            largest = _on_host(hidden.amax(0))
            self._pooled = largest if before is None else largest.maximum(before)
        else:
            states = _on_host(hidden)
            if before is not None:
                states = torch.cat((before[None], states))
            # NumPy adds row after row, so that the sum is the same in chunks of any size.
            self._pooled = torch.from_numpy(np.add.reduce(states.numpy(), axis=0))

    def finish(self, pooler: Callable[[Tensor], Tensor] | None) -> None:
        """Make the vector after the last chunk; `pooler` transforms it before its norm."""
        assert self._pooled is not None
        vector = self._pooled / self._count if self._kind == "mean" else self._pooled
        if pooler is not None:
            vector = pooler(vector)
        if self._normalize:
            vector = vector / vector.norm().clamp_min(1e-12)
        # Thousands of lists of floats would take long to be freed.
        self.values = array("d", vector.double().cpu().numpy().tobytes())
        self._pooled = None


def _on_host(states: Tensor) -> Tensor:
    return states.cpu().double()

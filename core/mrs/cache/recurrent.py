"""One state of fixed size, for layers that remember a sequence as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class RecurrentCache:
    """Tensors that a layer updates in place; zeros stand for no token.

    What they were before the last tokens is lost: only the beginning can be had again, and states
    of which a snapshot was taken.
    """

    def __init__(
        self, *shapes: Sequence[int], dtypes: Sequence[torch.dtype], device: torch.device
    ) -> None:
        self.length = 0
        self.device = device
        self.tensors = tuple(
            torch.zeros(*shape, dtype=dtype, device=device)
            for shape, dtype in zip(shapes, dtypes, strict=True)
        )

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def advance(self, tokens: int) -> None:
        """Count tokens that have been taken into the state."""
        self.length += tokens

    def can_rewind_to(self, length: int) -> bool:
        return length in (0, self.length)

    def rewind(self, length: int) -> None:
        if not self.can_rewind_to(length):
            raise ValueError(
                f"cannot rewind {self.length} tokens to {length}: only the state is kept"
            )
        if length == 0:
            self.restore(0, tuple(torch.zeros_like(tensor) for tensor in self.tensors))

    def snapshot(self) -> tuple[Tensor, ...]:
        return tuple(tensor.clone() for tensor in self.tensors)

    def restore(self, length: int, snapshot: tuple[Tensor, ...]) -> None:
        for tensor, saved in zip(self.tensors, snapshot, strict=True):
            tensor.copy_(saved)
        self.length = length

"""Muon in float32 on batches of equal matrices: on a CPU far faster than one by one in bf16."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

_MOMENTUM = 0.95
_COEFFICIENTS = (3.4445, -4.775, 2.0315)
_ITERATIONS = 5


def orthogonal(matrices: Tensor) -> Tensor:
    """Each of (count, rows, columns) with its singular values moved near 1.

    The Newton-Schulz iteration of K. Jordan et al., "Muon" (2024).
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = x / (torch.linalg.matrix_norm(x)[:, None, None] + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        square = x @ x.transpose(1, 2)
        x = a * x + (b * square + c * square @ square) @ x
    result: Tensor = x.transpose(1, 2) if tall else x
    return result


class Muon:
    """Momentum, made orthogonal, is the step of each matrix; a filter counts as one row."""

    def __init__(self, matrices: Iterable[Tensor]) -> None:
        by_size: dict[torch.Size, list[Tensor]] = {}
        for matrix in matrices:
            by_size.setdefault(matrix.flatten(1).shape, []).append(matrix)
        self._groups = [(group, torch.zeros(len(group), *size)) for size, group in by_size.items()]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Moves all matrices that have a gradient, and forgets the gradients."""
        for group, momentum in self._groups:
            gradient = torch.stack([_gradient(matrix) for matrix in group])
            momentum.lerp_(gradient, 1 - _MOMENTUM)
            update = orthogonal(gradient.lerp(momentum, _MOMENTUM))
            rows, columns = momentum.shape[1:]
            scale = rate * max(1.0, rows / columns) ** 0.5
            for matrix, change in zip(group, update, strict=True):
                matrix.sub_(change.view_as(matrix), alpha=scale)
                matrix.grad = None


def _gradient(matrix: Tensor) -> Tensor:
    return (torch.zeros_like(matrix) if matrix.grad is None else matrix.grad).flatten(1)

"""Weight matrices, however their numbers are stored."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Matrix(Protocol):
    """A (rows, columns) weight: multiplies activations, and gives single rows as an embedding."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def nbytes(self) -> int:
        """Bytes that the weight takes on its device."""

    @property
    def device(self) -> torch.device: ...

    def matmul(self, x: Tensor) -> Tensor:
        """x (N, columns) times the transposed weight: (N, rows), in x's dtype."""

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows `ids` (N,) as (N, columns)."""


class DenseMatrix:
    """A weight kept as an ordinary floating-point tensor."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        self.device = weight.device

    @property
    def shape(self) -> tuple[int, int]:
        return self._weight.shape[0], self._weight.shape[1]

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes

    def matmul(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self._weight.dtype), self._weight).to(x.dtype)

    def rows(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        return self._weight[ids].to(dtype)


class Linear:
    """A weight matrix and its bias, if any."""

    def __init__(self, matrix: Matrix, bias: Tensor | None = None) -> None:
        self._matrix = matrix
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        y = self._matrix.matmul(x)
        return y if self._bias is None else y + self._bias.to(y.dtype)

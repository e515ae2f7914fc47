"""Linear layers."""

from __future__ import annotations

from torch import Tensor

from mrs.quantization.matrix import Matrix


class Linear:
    """x times the transposed weight, plus a bias if there is one."""

    def __init__(self, matrix: Matrix, bias: Tensor | None = None) -> None:
        self._matrix = matrix
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        y = self._matrix.matmul(x)
        return y if self._bias is None else y + self._bias.to(y.dtype)
